-- The config store: what has been deployed, by whom, and who may do what.
-- {config} and {data} are replaced by the quoted names of the two schemas.

CREATE SCHEMA IF NOT EXISTS {config};
CREATE SCHEMA IF NOT EXISTS {data};

-- Numbers that are given out once and never again, whatever is dropped later.
CREATE TABLE {config}.counter (
    name  text   PRIMARY KEY,
    value bigint NOT NULL
);
INSERT INTO {config}.counter (name, value) VALUES ('entity', 0), ('archive', 0);

-- One row per entity that was ever deployed and not destroyed since. The record holds the identity
-- of its columns, so that renames and archives can be followed back (plan/recorded.py).
CREATE TABLE {config}.entity (
    entity_id       bigint      PRIMARY KEY,
    name            text        NOT NULL,
    state           text        NOT NULL CHECK (state IN ('deploying', 'deployed', 'removed')),
    desired_hash    text        NOT NULL,
    prevent_remove  boolean     NOT NULL,
    record          jsonb       NOT NULL,
    commit_id       text,
    deployed_at     timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX entity_name_key ON {config}.entity (name) WHERE state <> 'removed';

-- What PostgreSQL said of each relation of ours right after the last deployment. Expressions are
-- compared with this text, never parsed: PostgreSQL does not print them as they were written.
CREATE TABLE {config}.deployed_relation (
    schema_name   text  NOT NULL,
    relation_name text  NOT NULL,
    fingerprint   text  NOT NULL,
    objects       jsonb NOT NULL,
    PRIMARY KEY (schema_name, relation_name)
);

CREATE TABLE {config}.permission (
    principal  text   NOT NULL,
    domain     text   NOT NULL,
    entity     text   NOT NULL,
    actions    text[] NOT NULL,
    row_filter text   NOT NULL,
    PRIMARY KEY (principal, domain, entity, actions, row_filter)
);

CREATE TABLE {config}.webhook (
    webhook_id uuid        PRIMARY KEY DEFAULT gen_random_uuid(),
    name       text        NOT NULL UNIQUE,
    definition jsonb       NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now()
);

-- The seed file that was applied last, so that an unchanged one costs nothing.
CREATE TABLE {config}.seed (
    entity_id    bigint      PRIMARY KEY REFERENCES {config}.entity ON DELETE CASCADE,
    content_hash text        NOT NULL,
    applied_at   timestamptz NOT NULL DEFAULT now()
);

-- Project, domains and policy as last deployed; one row.
CREATE TABLE {config}.project (
    singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    definition jsonb   NOT NULL,
    commit_id  text
);

CREATE TABLE {config}.deployment (
    deployment_id bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    plan_id       text        NOT NULL,
    commit_id     text,
    actor         text        NOT NULL,
    state         text        NOT NULL
        CHECK (state IN ('running', 'succeeded', 'failed', 'interrupted')),
    entities      text[]      NOT NULL,
    summary       jsonb       NOT NULL,
    error         jsonb,
    started_at    timestamptz NOT NULL DEFAULT now(),
    finished_at   timestamptz
);
CREATE INDEX deployment_entities_idx ON {config}.deployment USING gin (entities);

-- The journal: which step of a deployment began, ended, and how far a long one has come.
CREATE TABLE {config}.deployment_step (
    deployment_id bigint      NOT NULL REFERENCES {config}.deployment ON DELETE CASCADE,
    number        integer     NOT NULL,
    phase         text        NOT NULL,
    title         text        NOT NULL,
    state         text        NOT NULL CHECK (state IN ('running', 'done', 'failed')),
    rows_done     bigint      NOT NULL DEFAULT 0,
    started_at    timestamptz NOT NULL DEFAULT now(),
    finished_at   timestamptz,
    PRIMARY KEY (deployment_id, number)
);

CREATE TABLE {config}.api_key (
    name            text        PRIMARY KEY,
    key_sha256      bytea       NOT NULL UNIQUE,
    is_global_admin boolean     NOT NULL,
    created_at      timestamptz NOT NULL DEFAULT now(),
    created_by      text        NOT NULL,
    expires_at      timestamptz,
    revoked_at      timestamptz,
    last_used_at    timestamptz
);

-- RFC 9562 version 7: 48 bits of Unix milliseconds, then random bits. PostgreSQL 18 has its own
-- function; this one gives the same on 16 and 17.
CREATE FUNCTION {config}.uuid_v7() RETURNS uuid LANGUAGE sql VOLATILE PARALLEL SAFE AS $$
    SELECT encode(
        set_bit(set_bit(overlay(
            uuid_send(gen_random_uuid())
            PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3)
            FROM 1 FOR 6), 52, 1), 53, 1), 'hex')::uuid
$$;

-- The tables and views of the given schemas, or of them only the named ones. What is asked of them
-- below is asked relation by relation, so that the cost of a few does not grow with the number of all.
CREATE FUNCTION {config}.relation(schemas text[], names text[])
RETURNS TABLE (oid oid, schema_name text, relation_name text, kind text)
LANGUAGE sql STABLE ROWS 100
SET search_path = pg_catalog
AS $$
    SELECT c.oid, n.nspname, c.relname, c.relkind
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE names IS NULL AND n.nspname = ANY (schemas) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
     UNION ALL
    SELECT c.oid, n.nspname, c.relname, c.relkind
      FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
     WHERE c.relname = ANY (names) AND n.nspname = ANY (schemas)
       AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
$$;

-- How relations look now, as one short text each, to be compared with the text of another moment in
-- the same database. Expressions go into it as PostgreSQL stores them: printing them takes longer
-- than all the rest. Two looks may differ although live_relation says the same, never the reverse.
CREATE FUNCTION {config}.live_look(schemas text[], names text[] DEFAULT NULL)
RETURNS TABLE (schema_name text, relation_name text, fingerprint text)
LANGUAGE sql STABLE
SET search_path = pg_catalog
SET timezone = 'UTC'
SET datestyle = 'ISO'
SET intervalstyle = 'iso_8601'
SET quote_all_identifiers = off
AS $$
    SELECT r.schema_name, r.relation_name, md5(concat_ws(E'\n', r.kind,
        (SELECT string_agg(concat_ws(' ', a.attnum, a.attname, a.atttypid, a.atttypmod,
                   a.attnotnull, a.attidentity, a.attgenerated,
                   -- The types of PostgreSQL itself keep their names.
                   CASE WHEN a.atttypid >= 16384 THEN format_type(a.atttypid, a.atttypmod) END,
                   CASE WHEN a.atthasdef THEN (
                       SELECT d.adbin::text FROM pg_attrdef d
                        WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum) END),
                   E'\n' ORDER BY a.attnum)
           FROM pg_attribute a
          WHERE a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped),
        (SELECT string_agg(concat_ws(' ', k.conname, k.contype, k.convalidated, k.condeferrable,
                   k.condeferred, k.confupdtype, k.confdeltype, k.confmatchtype, k.conkey,
                   k.confkey, k.conbin, tn.nspname, t.relname,
                   CASE WHEN k.contype = 'f' THEN (
                       SELECT string_agg(a.attname, ' ' ORDER BY a.attnum) FROM pg_attribute a
                        WHERE a.attrelid = k.confrelid AND a.attnum = ANY (k.confkey)) END),
                   E'\n' ORDER BY k.conname COLLATE "C")
           FROM pg_constraint k
           LEFT JOIN pg_class t ON t.oid = k.confrelid
           LEFT JOIN pg_namespace tn ON tn.oid = t.relnamespace
          WHERE k.conrelid = r.oid AND k.contype IN ('c', 'f', 'p', 'u', 'x')),
        (SELECT string_agg(concat_ws(' ', i.relname, i.relam, i.reloptions, x.indisunique,
                   x.indisvalid, x.indisready, x.indnullsnotdistinct, x.indnkeyatts, x.indkey,
                   x.indclass, x.indcollation, x.indoption, x.indpred, x.indexprs),
                   E'\n' ORDER BY i.relname COLLATE "C")
           FROM pg_index x JOIN pg_class i ON i.oid = x.indexrelid
          WHERE x.indrelid = r.oid),
        (SELECT string_agg(concat_ws(' ', g.tgenabled, pg_get_triggerdef(g.oid)),
                   E'\n' ORDER BY g.tgname COLLATE "C")
           FROM pg_trigger g WHERE g.tgrelid = r.oid AND NOT g.tgisinternal),
        CASE WHEN r.kind IN ('v', 'm') THEN pg_get_viewdef(r.oid) END))
      FROM {config}.relation(schemas, names) r
$$;

-- The same relations in words that can be told to a person and compared with a definition.
CREATE FUNCTION {config}.live_relation(schemas text[], names text[] DEFAULT NULL)
RETURNS TABLE (schema_name text, relation_name text, kind text, objects jsonb)
LANGUAGE sql STABLE
-- The text is the same whoever asks: names are printed without a schema only when it is on the path,
-- and constants of defaults and checks in the style and time zone of the session.
SET search_path = pg_catalog
SET timezone = 'UTC'
SET datestyle = 'ISO'
SET intervalstyle = 'iso_8601'
SET quote_all_identifiers = off
AS $$
    SELECT r.schema_name, r.relation_name, r.kind, jsonb_build_object(
        'columns', coalesce((
            SELECT jsonb_object_agg(a.attname, jsonb_build_object(
                       'type', format_type(a.atttypid, a.atttypmod),
                       'not_null', a.attnotnull,
                       'default', CASE WHEN a.atthasdef THEN (
                           SELECT pg_get_expr(d.adbin, d.adrelid) FROM pg_attrdef d
                            WHERE d.adrelid = a.attrelid AND d.adnum = a.attnum) END,
                       'generated', a.attgenerated <> '' OR a.attidentity <> ''))
              FROM pg_attribute a
             WHERE a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped), '{}'),
        'constraints', coalesce((
            SELECT jsonb_object_agg(k.conname, jsonb_build_object(
                       'kind', k.contype,
                       'validated', k.convalidated,
                       'deferrable', k.condeferrable,
                       'deferred', k.condeferred,
                       'actions', k.confupdtype::text || k.confdeltype::text || k.confmatchtype::text,
                       'definition', CASE WHEN k.contype = 'f' THEN '' ELSE
                           regexp_replace(pg_get_constraintdef(k.oid), ' NOT VALID$', '') END,
                       'columns', (
                           SELECT jsonb_agg(a.attname ORDER BY u.n)
                             FROM unnest(k.conkey) WITH ORDINALITY u(attnum, n)
                             JOIN pg_attribute a
                               ON a.attrelid = k.conrelid AND a.attnum = u.attnum),
                       'target_schema', tn.nspname,
                       'target_table', t.relname,
                       'target_columns', CASE WHEN k.contype = 'f' THEN (
                           SELECT jsonb_agg(a.attname ORDER BY u.n)
                             FROM unnest(k.confkey) WITH ORDINALITY u(attnum, n)
                             JOIN pg_attribute a
                               ON a.attrelid = k.confrelid AND a.attnum = u.attnum) END))
              FROM pg_constraint k
              LEFT JOIN pg_class t ON t.oid = k.confrelid
              LEFT JOIN pg_namespace tn ON tn.oid = t.relnamespace
             WHERE k.conrelid = r.oid AND k.contype IN ('c', 'f', 'p', 'u', 'x')), '{}'),
        'indexes', coalesce((
            SELECT jsonb_object_agg(i.relname, jsonb_build_object(
                       'unique', x.indisunique,
                       'valid', x.indisvalid AND x.indisready,
                       'plain', x.indpred IS NULL AND x.indexprs IS NULL AND am.amname = 'btree'
                                AND x.indnkeyatts = x.indnatts AND NOT x.indnullsnotdistinct
                                AND 0 = ALL (x.indoption::int2[]),
                       'columns', (
                           SELECT jsonb_agg(a.attname ORDER BY u.n)
                             FROM unnest(x.indkey::int2[]) WITH ORDINALITY u(attnum, n)
                             JOIN pg_attribute a
                               ON a.attrelid = x.indrelid AND a.attnum = u.attnum),
                       'definition', pg_get_indexdef(x.indexrelid)))
              FROM pg_index x
              JOIN pg_class i ON i.oid = x.indexrelid
              JOIN pg_am am ON am.oid = i.relam
             WHERE x.indrelid = r.oid
               AND NOT EXISTS (SELECT FROM pg_constraint k
                                WHERE k.conrelid = x.indrelid AND k.conindid = x.indexrelid
                                  AND k.contype IN ('p', 'u', 'x'))), '{}'),
        'triggers', coalesce((
            SELECT jsonb_object_agg(g.tgname, jsonb_build_object(
                       'enabled', g.tgenabled, 'definition', pg_get_triggerdef(g.oid)))
              FROM pg_trigger g
             WHERE g.tgrelid = r.oid AND NOT g.tgisinternal), '{}'),
        'view', CASE WHEN r.kind IN ('v', 'm') THEN pg_get_viewdef(r.oid) END)
      FROM {config}.relation(schemas, names) r
$$;

-- Remember how the given relations look now. Runs in the transaction that changed them.
CREATE FUNCTION {config}.remember_relation(schema_names text[], relation_names text[])
RETURNS void LANGUAGE sql AS $$
    DELETE FROM {config}.deployed_relation d
     USING unnest(schema_names, relation_names) AS given(schema_name, relation_name)
     WHERE (d.schema_name, d.relation_name) = (given.schema_name, given.relation_name);
    INSERT INTO {config}.deployed_relation (schema_name, relation_name, fingerprint, objects)
    SELECT l.schema_name, l.relation_name, k.fingerprint, l.objects
      FROM unnest(schema_names, relation_names) AS given(schema_name, relation_name)
      JOIN {config}.live_relation(
               ARRAY(SELECT DISTINCT s FROM unnest(schema_names) AS s), relation_names) AS l
        ON (l.schema_name, l.relation_name) = (given.schema_name, given.relation_name)
      JOIN {config}.live_look(
               ARRAY(SELECT DISTINCT s FROM unnest(schema_names) AS s), relation_names) AS k
        ON (k.schema_name, k.relation_name) = (given.schema_name, given.relation_name);
$$;
