-- What a row is searched by. Indexes are built on these functions, so their answers never change; another
-- way of cutting words is another function, and its indexes are other indexes.

-- The words of folded text: what stands between spaces and punctuation, told by code points alone, because
-- what a server takes for a letter depends on its locale. data/search_words.py cuts what people type in
-- the same way; a test holds them equal. A word counts as far as its 64th letter.
CREATE FUNCTION {config}.search_words(folded text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog
AS $$
DECLARE
    plain text := folded;
    words text[];
BEGIN
    IF octet_length(plain) <> length(plain) THEN
        plain := regexp_replace(plain, '[\u0080-\u00a9\u00ab-\u00b4\u00b6-\u00b9\u00bb-\u00bf\u00d7\u00f7'
            || '\u2000-\u206f\u2e00-\u2e7f\u3000-\u3004\u3008-\u3020\u3030\u303d\u30fb\ufe10-\ufe1f'
            || '\ufe30-\ufe6f\ufeff-\uff0f\uff1a-\uff20\uff3b-\uff40\uff5b-\uff65]+', ' ', 'g');
    END IF;
    plain := translate(plain,
        E'\x01\x02\x03\x04\x05\x06\x07\x08\t\n\x0b\x0c\r\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19'
        || E'\x1a\x1b\x1c\x1d\x1e\x1f!"#$%&''()*+,-./:;<=>?@[\\]^_`{|}~\x7f', repeat(' ', 64));
    words := array_remove(string_to_array(plain, ' '), '');
    IF length(plain) > 64 THEN
        words := ARRAY(SELECT left(word, 64) FROM unnest(words) AS word);
    END IF;
    RETURN words;
END
$$;

-- Each word as it is, to be found whole or by how it begins, and behind a mark each end of it that has three
-- letters or more: what stands inside a word is how one of its ends begins. Scripts that put no spaces
-- between words need each end. Of one value 10,000 letters count, of a row 2,000 words, of a word's
-- ends those of its first 40 letters: a value of 10 MB costs no more than that.
CREATE FUNCTION {config}.search_vector(given text[]) RETURNS tsvector
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog
AS $$
DECLARE
    value text;
    word text;
    words text[] := '{}';
    lexemes text[];
BEGIN
    FOREACH value IN ARRAY given LOOP
        IF value <> '' THEN
            words := words || {config}.search_words({config}.fold(left(value, 10000)));
        END IF;
    END LOOP;
    words := words[:2000];
    lexemes := words;
    FOREACH word IN ARRAY words LOOP
        IF octet_length(word) > 3 THEN
            lexemes := lexemes || ARRAY(SELECT '+' || right(word, -start) FROM generate_series(1,
                least(length(word), 40) - CASE WHEN word ~ '[\u2e80-\ufaff\U00020000-\U0003ffff]' THEN 1 ELSE 3 END
            ) AS start);
        END IF;
    END LOOP;
    RETURN array_to_tsvector(lexemes);
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
