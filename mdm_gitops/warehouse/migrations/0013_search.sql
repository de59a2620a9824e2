-- What a row is searched by. Indexes are built on this function, so its answers never change; another way of
-- cutting words is another function, and its indexes are other indexes.
--
-- Words are what stands between spaces and punctuation, told by code points alone, because what a server takes
-- for a letter depends on its locale; then folded. data/search_words.py cuts what people type in the same
-- way (a test holds them equal). Each word is a lexeme, found whole or by how it begins. Behind a mark come the
-- four letters from each place inside it on (the last three at its end): three or four letters that stand inside
-- are how one of them begins, longer ones are all of theirs. (Whole ends instead of four letters made
-- an index nearly twice as large.) Scripts that put no spaces between words have them to the last letter.
--
-- Of one value 5,000 letters count, of a row 2,000 words, of a word 40 letters, and the insides of the first 200
-- words: so a value of 10 MB costs no more than these, and the whole stays below the megabyte that PostgreSQL
-- allows. It is dear (about 50 µs), which the planner is told, so that it never prefers to work it out for
-- the rows of a table.
CREATE FUNCTION {config}.search_vector(given text[]) RETURNS tsvector
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE COST 10000
SET search_path = pg_catalog
AS $$
DECLARE
    plain text := '';
    value text;
    words text[];
BEGIN
    FOREACH value IN ARRAY given LOOP
        plain := plain || ' ' || left(coalesce(value, ''), 5000);
    END LOOP;
    words := string_to_array(trim(regexp_replace(plain, '[\u0001-\u002f\u003a-\u0040\u005b-\u0060'
        || '\u007b-\u00a9\u00ab-\u00b4\u00b6-\u00b9\u00bb-\u00bf\u00d7\u00f7\u037e\u0385\u0387\u0589\u05be'
        || '\u05c0\u05c3\u060c\u061b\u061f\u066a-\u066d\u06d4\u0964\u0965\u1680\u1fc1\u1fed-\u1fef\u1ffd'
        || '\u2000-\u206f\u2190-\u23ff\u2e00-\u2e7f\u3000-\u3004\u3008-\u3020\u3030\u303d\u30fb'
        || '\ufe10-\ufe1f\ufe30-\ufe6f\ufeff-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]+', ' ', 'g')), ' ');
    words := ARRAY(
        SELECT left(CASE WHEN octet_length(word) = length(word) THEN lower(word COLLATE "C")
                         ELSE {config}.fold(word) END, 40)
          FROM unnest(words[:2000]) AS word);
    RETURN array_to_tsvector(array_remove(words || ARRAY(
        SELECT '+' || substr(word, start + 1, 4)
          FROM unnest(words[:200]) AS word,
               generate_series(1, length(word) - CASE WHEN octet_length(word) > length(word)
                   AND word ~ '[\u2e80-\ua4cf\uac00-\ud7a3\uf900-\ufaff\U00020000-\U0003ffff]'
                   THEN 1 ELSE 3 END) AS start), ''));
END
$$;

-- A value as text that no setting of a session changes, so that an index may be built over it.
CREATE FUNCTION {config}.index_text(value text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE AS 'SELECT value';
CREATE FUNCTION {config}.index_text(value integer) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog AS 'SELECT value::text';
CREATE FUNCTION {config}.index_text(value bigint) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog AS 'SELECT value::text';
CREATE FUNCTION {config}.index_text(value numeric) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog AS 'SELECT trim_scale(value)::text';
CREATE FUNCTION {config}.index_text(value boolean) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog AS 'SELECT value::text';
CREATE FUNCTION {config}.index_text(value uuid) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog AS 'SELECT value::text';
CREATE FUNCTION {config}.index_text(value date) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog
AS $$ SELECT to_char(value, 'YYYY-MM-DD') $$;
CREATE FUNCTION {config}.index_text(value timestamp with time zone) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE SET search_path = pg_catalog
AS $$ SELECT to_char(value AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"') $$;
