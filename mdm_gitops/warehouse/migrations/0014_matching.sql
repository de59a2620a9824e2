-- Finding rows that mean the same thing: the keys they have in common, the pairs that a scan has found,
-- and what people have said of them.

-- How words, folded and cleaned, sound; data/match_keys.py tells how. Both functions are the twins of those
-- in that module (a test holds them equal). Indexes are built on them, so their answers never change.
CREATE FUNCTION {config}.match_sound(words text) RETURNS text
LANGUAGE sql IMMUTABLE STRICT PARALLEL SAFE
SET search_path = pg_catalog
AS $$
    SELECT regexp_replace(regexp_replace(translate(
        replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(replace(
            words, 'sch', 's'), 'tch', 'c'), 'ph', 'f'), 'gh', 'g'), 'ck', 'k'), 'kn', 'n'), 'wr', 'r'),
            'sh', 's'), 'ch', 'k'), 'th', 't'), 'qu', 'k'), 'x', 'ks'), 'dg', 'g'),
        'pvcqzdneiouyw', 'bfkkstmaaaaah'), '([a-z])\1+', '\1', 'g'), '(?<=[a-z])[ah]+', '', 'g')
$$;

-- *kinds* has a letter for each of *given*: t a text, e a text that is compared as a whole, n a number, d a
-- day. All texts go through folding, cleaning and sounding together, with line ends between them. The costs
-- keep the planner from calling it for each row of a table.
CREATE FUNCTION {config}.match_keys(kinds text, given text[]) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE STRICT PARALLEL SAFE COST 10000
SET search_path = pg_catalog
AS $$
DECLARE
    number integer := length(kinds);
    value text;
    kind text;
    joined text := '';
    plains text[];
    sounds text[];
    codes text[];
    atom text;
    atoms text[] := '{}';
    keys text[] := '{}';
BEGIN
    FOR i IN 1..number LOOP
        IF i > 1 THEN
            joined := joined || E'\n';
        END IF;
        IF substr(kinds, i, 1) IN ('t', 'e') THEN
            joined := joined || coalesce(translate(left(given[i], 100), E'\n', ' '), '');
        END IF;
    END LOOP;
    joined := regexp_replace(translate({config}.fold(joined), '''.’', ''),
        '[\u0001-\u0009\u000b-\u002f\u003a-\u0060\u007b-\u00bf]+', ' ', 'g');
    plains := string_to_array(joined, E'\n');
    sounds := string_to_array({config}.match_sound(joined), E'\n');
    FOR i IN 1..number LOOP
        atom := NULL;
        value := given[i];
        kind := substr(kinds, i, 1);
        IF value IS NULL OR value = '' THEN
            NULL;
        ELSIF kind = 'd' THEN
            keys := keys || (chr(96 + i) || '=' || left(value, 10));
            atom := left(value, 4);
        ELSIF kind = 'n' THEN
            IF length(value) >= 5 THEN
                keys := keys || (chr(96 + i) || '=' || left(value, 40));
            END IF;
            atom := left(value, 8);
        ELSE
            value := coalesce(replace(plains[i], ' ', ''), '');
            IF value = '' THEN
                NULL;
            ELSIF kind = 'e' THEN
                keys := keys || (chr(96 + i) || '=' || left(value, 40));
                atom := left(value, 8);
            ELSIF translate(value, '0123456789', '') = '' THEN
                IF length(value) >= 6 THEN
                    keys := keys || (chr(96 + i) || '=' || right(value, 8));
                END IF;
                atom := left(value, 8);
            ELSE
                codes := string_to_array(btrim(sounds[i], ' '), ' ');
                value := '';
                FOR n IN 1..cardinality(codes) LOOP
                    codes[n] := left(codes[n], 5);
                    value := value || codes[n];
                    IF atom IS NULL AND n <= 3 AND (codes[n] COLLATE "C" < '0' OR codes[n] COLLATE "C" >= ':') THEN
                        atom := codes[n];
                    END IF;
                END LOOP;
                atom := coalesce(atom, codes[1]);
                keys := keys || (chr(96 + i) || '=' || left(value, 12));
                FOR n IN 1..least(cardinality(codes) - 1, 2) LOOP
                    keys := keys || (chr(96 + i) || ':' || codes[n] || codes[n + 1]);
                END LOOP;
            END IF;
        END IF;
        atoms := array_append(atoms, atom);
    END LOOP;
    FOR i IN 1..CASE WHEN number > 2 THEN number ELSE number - 1 END LOOP
        IF atoms[i] IS NOT NULL AND atoms[i % number + 1] IS NOT NULL THEN
            keys := keys || (chr(96 + i) || chr(97 + i % number) || ':' || atoms[i] || '|' || atoms[i % number + 1]);
        END IF;
    END LOOP;
    RETURN keys;
END
$$;

-- Scans of whole entities. The one that runs holds an advisory lock; one that says so without it was
-- killed. *since* is null when all rows were compared, *until* is where the next scan goes on.
CREATE TABLE {config}.match_scan (
    scan_id     uuid        PRIMARY KEY,
    entity_id   bigint      NOT NULL REFERENCES {config}.entity ON DELETE CASCADE,
    state       text        NOT NULL DEFAULT 'running'
        CHECK (state IN ('running', 'done', 'failed', 'cancelled')),
    rules       text        NOT NULL,
    min_score   float8      NOT NULL,
    since       timestamptz,
    until       timestamptz,
    started_at  timestamptz NOT NULL DEFAULT now(),
    started_by  text        NOT NULL,
    finished_at timestamptz,
    step        text        NOT NULL DEFAULT 'waiting',
    progress    float8      NOT NULL DEFAULT 0,
    counts      jsonb       NOT NULL DEFAULT '{}',
    error       text        NOT NULL DEFAULT ''
);
CREATE INDEX match_scan_entity_idx ON {config}.match_scan (entity_id, started_at DESC);
CREATE UNIQUE INDEX match_scan_running_key ON {config}.match_scan (entity_id) WHERE state = 'running';

-- Two rows that may be one, *low* < *high*. The scores belong to these versions of the rows and to these
-- rules; *open_score* is that without restricted columns. Values are not kept.
CREATE TABLE {config}.match_pair (
    entity_id    bigint  NOT NULL REFERENCES {config}.entity ON DELETE CASCADE,
    low          uuid    NOT NULL,
    high         uuid    NOT NULL,
    low_version  integer NOT NULL,
    high_version integer NOT NULL,
    rules        text    NOT NULL,
    full_score   float8  NOT NULL,
    open_score   float8  NOT NULL,
    PRIMARY KEY (entity_id, low, high),
    CHECK (low < high)
);
CREATE INDEX match_pair_high_idx ON {config}.match_pair (entity_id, high);
CREATE INDEX match_pair_full_idx ON {config}.match_pair (entity_id, full_score DESC, low, high);
CREATE INDEX match_pair_open_idx ON {config}.match_pair (entity_id, open_score DESC, low, high);

-- Pairs that somebody has looked at: they are not the same. Kept over all scans, until it is undone.
CREATE TABLE {config}.match_dismissed (
    entity_id    bigint      NOT NULL REFERENCES {config}.entity ON DELETE CASCADE,
    low          uuid        NOT NULL,
    high         uuid        NOT NULL,
    dismissed_by text        NOT NULL,
    dismissed_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (entity_id, low, high),
    CHECK (low < high)
);
