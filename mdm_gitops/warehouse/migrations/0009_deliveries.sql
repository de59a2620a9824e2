-- How far each subscription has come in the change feed, and what could not be delivered yet.

-- What a receiver has been given, or has waiting in webhook_delivery: all changes up to position.
CREATE TABLE {config}.webhook_cursor (
    webhook_id      uuid        PRIMARY KEY REFERENCES {config}.webhook ON DELETE CASCADE,
    position        bigint      NOT NULL,
    failing_since   timestamptz,
    disabled_at     timestamptz,
    disabled_reason text
);

-- Failed deliveries, and later changes of the same record, which wait behind them.
CREATE TABLE {config}.webhook_delivery (
    webhook_id      uuid        NOT NULL REFERENCES {config}.webhook ON DELETE CASCADE,
    event_id        bigint      NOT NULL,
    record_id       uuid        NOT NULL,
    state           text        NOT NULL CHECK (state IN ('waiting', 'dead', 'blocked')),
    attempts        integer     NOT NULL,
    next_attempt_at timestamptz NOT NULL,
    last_attempt_at timestamptz,
    last_status     integer     NOT NULL DEFAULT 0,
    last_error      text        NOT NULL DEFAULT '',
    PRIMARY KEY (webhook_id, event_id)
);
CREATE INDEX webhook_delivery_record_idx ON {config}.webhook_delivery (webhook_id, record_id, event_id)
    WHERE state = 'waiting';

-- Generated secrets; of two the older one still signs until it expires.
CREATE TABLE {config}.webhook_secret (
    webhook_id uuid        NOT NULL REFERENCES {config}.webhook ON DELETE CASCADE,
    secret     text        NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    expires_at timestamptz,
    PRIMARY KEY (webhook_id, secret)
);

-- The feed's position now, with what has been committed and not been numbered yet.
CREATE FUNCTION {config}.feed_position_now() RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    found bigint;
BEGIN
    WHILE {config}.number_changes(10000, 100000) LOOP END LOOP;
    SELECT last_id INTO found FROM {config}.feed_position;
    RETURN found;
END
$$;

-- A subscription begins at the feed's position of its creation, and again of its activation; a change
-- of any kind gives a disabled one its next chance.
CREATE FUNCTION {config}.set_webhook_cursor() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO {config}.webhook_cursor (webhook_id, position)
        VALUES (NEW.webhook_id, {config}.feed_position_now());
    ELSIF NEW.definition IS DISTINCT FROM OLD.definition THEN
        UPDATE {config}.webhook_cursor
           SET failing_since = NULL, disabled_at = NULL, disabled_reason = NULL,
               position = CASE
                   WHEN coalesce((OLD.definition ->> 'is_active')::boolean, true) THEN position
                   WHEN coalesce((NEW.definition ->> 'is_active')::boolean, true)
                   THEN {config}.feed_position_now() ELSE position END
         WHERE webhook_id = NEW.webhook_id;
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER set_webhook_cursor AFTER INSERT OR UPDATE OF definition ON {config}.webhook
    FOR EACH ROW EXECUTE FUNCTION {config}.set_webhook_cursor();

-- Who delivers knows by the revision that a subscription wants other changes now.
CREATE TRIGGER move_revision AFTER INSERT OR DELETE OR TRUNCATE OR UPDATE OF definition
    ON {config}.webhook FOR EACH STATEMENT EXECUTE FUNCTION {config}.move_revision();

INSERT INTO {config}.webhook_cursor (webhook_id, position)
SELECT webhook_id, {config}.feed_position_now() FROM {config}.webhook;
