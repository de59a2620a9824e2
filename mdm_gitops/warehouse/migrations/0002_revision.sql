-- One number that moves with everything a server may keep in memory: who may do what, and how the
-- entities look. A statement that reads rows reads it too, in the same snapshot, so a server learns
-- without a further query whether what it decided from memory still held.

CREATE TABLE {config}.revision (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    value     bigint  NOT NULL,
    moved_by  xid8
);
INSERT INTO {config}.revision (value) VALUES (1);

-- Once per transaction: a deployment of many entities writes one version of the row, not many.
CREATE FUNCTION {config}.move_revision() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog
AS $$
BEGIN
    UPDATE {config}.revision
       SET value = value + 1, moved_by = pg_current_xact_id()
     WHERE moved_by IS DISTINCT FROM pg_current_xact_id();
    RETURN NULL;
END
$$;

CREATE TRIGGER move_revision AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE
    ON {config}.entity FOR EACH STATEMENT EXECUTE FUNCTION {config}.move_revision();
CREATE TRIGGER move_revision AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE
    ON {config}.permission FOR EACH STATEMENT EXECUTE FUNCTION {config}.move_revision();
CREATE TRIGGER move_revision AFTER INSERT OR UPDATE OR DELETE OR TRUNCATE
    ON {config}.project FOR EACH STATEMENT EXECUTE FUNCTION {config}.move_revision();
-- Not on last_used_at, which moves with each use.
CREATE TRIGGER move_revision AFTER INSERT OR DELETE OR TRUNCATE
    OR UPDATE OF name, key_sha256, is_global_admin, expires_at, revoked_at
    ON {config}.api_key FOR EACH STATEMENT EXECUTE FUNCTION {config}.move_revision();
