-- Numbering the changes, an index over the feed, retention, and the audit of what is not a row change.

-- What an entity is called, kept when the entity is destroyed: its changes can still be read.
CREATE TABLE {config}.entity_name (
    entity_id    bigint PRIMARY KEY,
    name         text   NOT NULL,
    display_name text
);

CREATE FUNCTION {config}.keep_entity_name() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog
AS $$
BEGIN
    INSERT INTO {config}.entity_name AS n (entity_id, name, display_name)
    VALUES (NEW.entity_id, coalesce(NEW.record #>> '{definition,name}', NEW.name),
            NEW.record #>> '{definition,displayName}')
    ON CONFLICT (entity_id) DO UPDATE
       SET name = excluded.name, display_name = excluded.display_name
     WHERE (n.name, n.display_name) IS DISTINCT FROM (excluded.name, excluded.display_name);
    RETURN NULL;
END
$$;
CREATE TRIGGER keep_entity_name AFTER INSERT OR UPDATE OF name, record
    ON {config}.entity FOR EACH ROW EXECUTE FUNCTION {config}.keep_entity_name();
INSERT INTO {config}.entity_name (entity_id, name, display_name)
SELECT entity_id, coalesce(record #>> '{definition,name}', name),
       record #>> '{definition,displayName}'
  FROM {config}.entity;

-- What 1,024 successive ids hold (block = id >> 10): how many changes, and from when to when, per
-- entity, action and actor. Written with the ids, so its sum is always the last id. Totals are
-- read from it, and readers of a part of the feed skip the blocks that hold nothing for them.
CREATE TABLE {config}.feed_block (
    block          bigint      NOT NULL,
    entity_id      bigint      NOT NULL,
    action         text        NOT NULL,
    actor          text        NOT NULL,
    events         integer     NOT NULL,
    first_occurred timestamptz NOT NULL,
    last_occurred  timestamptz NOT NULL,
    PRIMARY KEY (block, entity_id, action, actor)
);

-- Every set with a seq up to low_seq has its number or will never be committed: the search for new
-- ones starts behind it, and does not pass over what vacuum has not yet removed from the index.
-- The same can be said of next_seq when all transactions before next_xid have ended.
ALTER TABLE {config}.feed_position
    ADD COLUMN low_seq  bigint NOT NULL DEFAULT 0,
    ADD COLUMN next_seq bigint NOT NULL DEFAULT 0,
    ADD COLUMN next_xid xid8   NOT NULL DEFAULT '0';

-- Give ids to the change sets that became visible, in the order of their seq, and say whether some
-- may be left: at most max_sets of them, and no further one once max_events are numbered. Each
-- statement of the function sees what is committed when it begins, so all after the first see what
-- the reader did who held the row before.
CREATE FUNCTION {config}.number_changes(max_sets integer, max_events bigint) RETURNS boolean
LANGUAGE plpgsql
-- The few new sets are found by index whatever the planner was last told of their number.
SET enable_seqscan = off
SET enable_hashjoin = off
SET enable_mergejoin = off
SET jit = off
-- Whoever numbers is soon done; only a deployment that numbers may take longer.
SET lock_timeout = '2s'
AS $$
DECLARE
    drawn    bigint;
    own_xid  xid8;
    standing {config}.feed_position;
    settled  bigint;
    is_next  boolean;
    numbered bigint;
    up_to    bigint;
    is_done  boolean;
BEGIN
    -- A set with a seq up to this one belongs to a transaction older than the xid that we get now,
    -- because a writer has written its events before it draws a seq.
    IF pg_current_xact_id_if_assigned() IS NULL THEN
        SELECT CASE WHEN is_called THEN last_value ELSE 0 END INTO drawn
          FROM {config}.change_set_seq_seq;
    END IF;
    own_xid := pg_current_xact_id();
    SELECT * INTO standing FROM {config}.feed_position FOR UPDATE;
    is_next := pg_snapshot_xmin(pg_current_snapshot()) >= standing.next_xid;
    settled := CASE WHEN is_next THEN greatest(standing.low_seq, standing.next_seq)
                    ELSE standing.low_seq END;
    WITH due AS MATERIALIZED (
        SELECT w.seq, w.key, w.occurred_at, w.actor, w.upto,
               standing.last_id + w.upto - w.events + 1 AS first_id
          FROM (SELECT c.seq, c.key, c.events, c.occurred_at, c.actor,
                       sum(c.events) OVER (ORDER BY c.seq) AS upto
                  FROM {config}.change_set c
                 WHERE c.first_id IS NULL AND c.seq > standing.low_seq
                 ORDER BY c.seq LIMIT max_sets) w
         WHERE w.upto - w.events < max_events
    ), given AS (
        UPDATE {config}.change_set c SET first_id = d.first_id FROM due d WHERE c.seq = d.seq
    ), counted AS (
        INSERT INTO {config}.feed_block AS b
               (block, entity_id, action, actor, events, first_occurred, last_occurred)
        SELECT (d.first_id + e.ordinal) >> 10, e.entity_id, e.action, coalesce(e.actor, d.actor),
               count(*), min(d.occurred_at), max(d.occurred_at)
          FROM due d JOIN {config}.event e ON e.change_set = d.key
         GROUP BY 1, 2, 3, 4
        ON CONFLICT (block, entity_id, action, actor) DO UPDATE
           SET events = b.events + excluded.events,
               first_occurred = least(b.first_occurred, excluded.first_occurred),
               last_occurred = greatest(b.last_occurred, excluded.last_occurred)
    )
    SELECT coalesce(max(d.upto), 0), max(d.seq),
           count(*) < max_sets AND coalesce(max(d.upto), 0) < max_events
      INTO numbered, up_to, is_done FROM due d;
    UPDATE {config}.feed_position
       SET last_id = standing.last_id + numbered,
           low_seq = greatest(low_seq, CASE WHEN is_done THEN settled ELSE least(settled, up_to) END);
    -- A next_xid above ours is of another server's life: the store was restored from a dump.
    IF drawn IS NOT NULL AND (is_next OR standing.next_xid > own_xid) THEN
        UPDATE {config}.feed_position SET next_seq = greatest(settled, drawn), next_xid = own_xid;
    END IF;
    RETURN NOT is_done;
END
$$;

-- All ids up to removed_id are gone. One row, apart from feed_position: who removes keeps nobody from
-- numbering.
CREATE TABLE {config}.feed_retention (
    singleton  boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    removed_id bigint  NOT NULL
);
INSERT INTO {config}.feed_retention (removed_id) VALUES (0);

-- The highest removed id of each entity: who reads other entities has missed nothing.
CREATE TABLE {config}.feed_removed (
    entity_id  bigint PRIMARY KEY,
    removed_id bigint NOT NULL
);

-- Audited actions that are not changes of rows. entities holds folded names.
CREATE TABLE {config}.audit (
    audit_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    occurred_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    actor       text        NOT NULL,
    action      text        NOT NULL,
    entities    text[]      NOT NULL DEFAULT '{}',
    record_id   uuid,
    commit_id   text,
    details     jsonb       NOT NULL DEFAULT '{}'
);
CREATE INDEX audit_occurred_idx ON {config}.audit (occurred_at);

-- Who acts in this session: what our programs say, else the role that is connected.
CREATE FUNCTION {config}.acting() RETURNS text LANGUAGE sql STABLE
SET search_path = pg_catalog
AS $$
    SELECT coalesce(nullif(current_setting('mdm.actor', true), ''), 'database:' || session_user)
$$;

CREATE FUNCTION {config}.audit_deployment() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog
AS $$
BEGIN
    INSERT INTO {config}.audit (actor, action, entities, commit_id, details)
    VALUES (NEW.actor,
            CASE WHEN NEW.plan_id = 'drop-archives' THEN 'archives_dropped'
                 ELSE 'deploy_' || NEW.state END,
            NEW.entities, NEW.commit_id,
            jsonb_strip_nulls(jsonb_build_object(
                'deploymentId', NEW.deployment_id, 'planId', NEW.plan_id, 'summary', NEW.summary,
                'error', NEW.error)));
    RETURN NULL;
END
$$;
CREATE TRIGGER audit_deployment AFTER INSERT OR UPDATE OF state ON {config}.deployment
    FOR EACH ROW WHEN (NEW.state <> 'running') EXECUTE FUNCTION {config}.audit_deployment();
INSERT INTO {config}.audit (occurred_at, actor, action, entities, commit_id, details)
SELECT coalesce(finished_at, started_at), actor,
       CASE WHEN plan_id = 'drop-archives' THEN 'archives_dropped' ELSE 'deploy_' || state END,
       entities, commit_id,
       jsonb_strip_nulls(jsonb_build_object(
           'deploymentId', deployment_id, 'planId', plan_id, 'summary', summary, 'error', error))
  FROM {config}.deployment WHERE state <> 'running' ORDER BY deployment_id;

CREATE FUNCTION {config}.audit_permission() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog
AS $$
BEGIN
    INSERT INTO {config}.audit (actor, action, entities, commit_id, details)
    SELECT {config}.acting(), CASE TG_OP WHEN 'INSERT' THEN 'permission_granted'
                                        ELSE 'permission_revoked' END,
           CASE WHEN m.entity = '' THEN '{}' ELSE ARRAY[m.entity] END,
           nullif(current_setting('mdm.commit', true), ''),
           jsonb_strip_nulls(jsonb_build_object(
               'principal', m.principal, 'domain', m.domain, 'entity', nullif(m.entity, ''),
               'actions', m.actions, 'rowFilterDsl', nullif(m.row_filter, '')))
      FROM moved m;
    RETURN NULL;
END
$$;
CREATE TRIGGER audit_granted AFTER INSERT ON {config}.permission
    REFERENCING NEW TABLE AS moved
    FOR EACH STATEMENT EXECUTE FUNCTION {config}.audit_permission();
CREATE TRIGGER audit_revoked AFTER DELETE ON {config}.permission
    REFERENCING OLD TABLE AS moved
    FOR EACH STATEMENT EXECUTE FUNCTION {config}.audit_permission();

CREATE FUNCTION {config}.audit_api_key() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog
AS $$
BEGIN
    INSERT INTO {config}.audit (actor, action, details)
    VALUES (CASE WHEN TG_OP = 'INSERT' THEN NEW.created_by ELSE {config}.acting() END,
            CASE WHEN TG_OP = 'INSERT' THEN 'api_key_created'
                 WHEN TG_OP = 'DELETE' THEN 'api_key_deleted'
                 WHEN OLD.revoked_at IS NULL AND NEW.revoked_at IS NOT NULL THEN 'api_key_revoked'
                 ELSE 'api_key_changed' END,
            CASE WHEN TG_OP = 'DELETE' THEN jsonb_build_object('name', OLD.name)
                 ELSE jsonb_strip_nulls(jsonb_build_object(
                          'name', NEW.name, 'isGlobalAdmin', NEW.is_global_admin,
                          'expiresUtc',
                          replace((NEW.expires_at AT TIME ZONE 'UTC')::text, ' ', 'T') || 'Z'))
            END);
    RETURN NULL;
END
$$;
-- Not on last_used_at, which moves with each use.
CREATE TRIGGER audit_api_key AFTER INSERT OR DELETE
    OR UPDATE OF name, key_sha256, is_global_admin, expires_at, revoked_at
    ON {config}.api_key FOR EACH ROW EXECUTE FUNCTION {config}.audit_api_key();
