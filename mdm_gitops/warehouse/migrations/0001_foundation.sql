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

-- The tables and views of the given schemas (or of them only the named ones) as PostgreSQL sees them
-- now: one row per relation with its parts in a fixed order and a fingerprint over them.
CREATE FUNCTION {config}.live_relation(schemas text[], names text[] DEFAULT NULL)
RETURNS TABLE (schema_name text, relation_name text, kind text, fingerprint text, objects jsonb)
LANGUAGE sql STABLE
-- The text is the same whoever asks: names are printed without a schema only when it is on the path,
-- and constants of defaults and checks in the style and time zone of the session.
SET search_path = pg_catalog
SET timezone = 'UTC'
SET datestyle = 'ISO'
SET intervalstyle = 'iso_8601'
SET quote_all_identifiers = off
AS $$
    WITH relation AS (
        SELECT c.oid, n.nspname::text AS schema_name, c.relname::text AS relation_name, c.relkind
          FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
         WHERE n.nspname = ANY (schemas) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
           AND (names IS NULL OR c.relname = ANY (names))
    ),
    attribute AS (
        SELECT r.oid, jsonb_object_agg(a.attname, jsonb_build_object(
                   'type', format_type(a.atttypid, a.atttypmod),
                   'not_null', a.attnotnull,
                   'default', pg_get_expr(d.adbin, d.adrelid),
                   'generated', a.attgenerated <> '' OR a.attidentity <> '')) AS parts
          FROM relation r
          JOIN pg_attribute a ON a.attrelid = r.oid AND a.attnum > 0 AND NOT a.attisdropped
          LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
         GROUP BY r.oid
    ),
    con AS (
        SELECT r.oid, jsonb_object_agg(k.conname, jsonb_build_object(
                   'kind', k.contype,
                   'validated', k.convalidated,
                   'deferrable', k.condeferrable,
                   'deferred', k.condeferred,
                   'actions', k.confupdtype::text || k.confdeltype::text || k.confmatchtype::text,
                   'definition', CASE WHEN k.contype = 'f' THEN '' ELSE
                                      regexp_replace(pg_get_constraintdef(k.oid), ' NOT VALID$', '') END,
                   'columns', (SELECT jsonb_agg(a.attname ORDER BY u.n)
                                 FROM unnest(k.conkey) WITH ORDINALITY u(attnum, n)
                                 JOIN pg_attribute a
                                   ON a.attrelid = k.conrelid AND a.attnum = u.attnum),
                   'target_schema', tn.nspname,
                   'target_table', t.relname,
                   'target_columns', (SELECT jsonb_agg(a.attname ORDER BY u.n)
                                        FROM unnest(k.confkey) WITH ORDINALITY u(attnum, n)
                                        JOIN pg_attribute a
                                          ON a.attrelid = k.confrelid AND a.attnum = u.attnum)
                   )) AS parts
          FROM relation r
          JOIN pg_constraint k ON k.conrelid = r.oid AND k.contype IN ('c', 'f', 'p', 'u', 'x')
          LEFT JOIN pg_class t ON t.oid = k.confrelid
          LEFT JOIN pg_namespace tn ON tn.oid = t.relnamespace
         GROUP BY r.oid
    ),
    idx AS (
        SELECT r.oid, jsonb_object_agg(i.relname, jsonb_build_object(
                   'unique', x.indisunique,
                   'valid', x.indisvalid AND x.indisready,
                   'plain', x.indpred IS NULL AND x.indexprs IS NULL AND am.amname = 'btree'
                            AND x.indnkeyatts = x.indnatts AND NOT x.indnullsnotdistinct
                            AND 0 = ALL (x.indoption::int2[]),
                   'columns', (SELECT jsonb_agg(a.attname ORDER BY u.n)
                                 FROM unnest(x.indkey::int2[]) WITH ORDINALITY u(attnum, n)
                                 JOIN pg_attribute a
                                   ON a.attrelid = x.indrelid AND a.attnum = u.attnum),
                   'definition', pg_get_indexdef(x.indexrelid))) AS parts
          FROM relation r
          JOIN pg_index x ON x.indrelid = r.oid
          JOIN pg_class i ON i.oid = x.indexrelid
          JOIN pg_am am ON am.oid = i.relam
         WHERE NOT EXISTS (SELECT FROM pg_constraint k
                            WHERE k.conindid = x.indexrelid AND k.contype IN ('p', 'u', 'x'))
         GROUP BY r.oid
    ),
    trg AS (
        SELECT r.oid, jsonb_object_agg(g.tgname, jsonb_build_object(
                   'enabled', g.tgenabled, 'definition', pg_get_triggerdef(g.oid))) AS parts
          FROM relation r
          JOIN pg_trigger g ON g.tgrelid = r.oid AND NOT g.tgisinternal
         GROUP BY r.oid
    ),
    described AS (
        SELECT r.schema_name, r.relation_name, r.relkind::text AS kind,
               jsonb_build_object(
                   'columns', coalesce(a.parts, '{}'),
                   'constraints', coalesce(k.parts, '{}'),
                   'indexes', coalesce(i.parts, '{}'),
                   'triggers', coalesce(t.parts, '{}'),
                   'view', CASE WHEN r.relkind IN ('v', 'm') THEN pg_get_viewdef(r.oid) END
               ) AS objects
          FROM relation r
          LEFT JOIN attribute a USING (oid)
          LEFT JOIN con k USING (oid)
          LEFT JOIN idx i USING (oid)
          LEFT JOIN trg t USING (oid)
    )
    SELECT d.schema_name, d.relation_name, d.kind, md5(d.objects::text), d.objects
      FROM described d
$$;

-- Remember how the given relations look now. Runs in the transaction that changed them.
CREATE FUNCTION {config}.remember_relation(schema_names text[], relation_names text[])
RETURNS void LANGUAGE sql AS $$
    DELETE FROM {config}.deployed_relation d
     USING unnest(schema_names, relation_names) AS given(schema_name, relation_name)
     WHERE (d.schema_name, d.relation_name) = (given.schema_name, given.relation_name);
    INSERT INTO {config}.deployed_relation (schema_name, relation_name, fingerprint, objects)
    SELECT l.schema_name, l.relation_name, l.fingerprint, l.objects
      FROM {config}.live_relation(
               ARRAY(SELECT DISTINCT s FROM unnest(schema_names) AS s), relation_names) AS l
      JOIN unnest(schema_names, relation_names) AS given(schema_name, relation_name)
        ON (l.schema_name, l.relation_name) = (given.schema_name, given.relation_name);
$$;
