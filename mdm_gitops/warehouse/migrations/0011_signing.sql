-- No delivery leaves without a signature: a subscription whose definition names no secret gets one with its
-- deployment, in the same transaction. Nobody has seen it (is_shown); the first secret that is shown replaces it.

ALTER TABLE {config}.webhook_secret ADD COLUMN is_shown boolean NOT NULL DEFAULT true;

-- 244 random bits of the server's strong source.
CREATE FUNCTION {config}.make_webhook_secret() RETURNS text LANGUAGE sql VOLATILE
SET search_path = pg_catalog
AS $$
    SELECT 'whsec_' || encode(
        decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'), 'base64')
$$;

CREATE FUNCTION {config}.sign_webhook() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog
AS $$
BEGIN
    IF nullif(NEW.definition ->> 'secretRef', '') IS NULL AND NOT EXISTS (
        SELECT FROM {config}.webhook_secret
         WHERE webhook_id = NEW.webhook_id AND expires_at IS NULL)
    THEN
        INSERT INTO {config}.webhook_secret (webhook_id, secret, is_shown)
        VALUES (NEW.webhook_id, {config}.make_webhook_secret(), false);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER sign_webhook AFTER INSERT OR UPDATE OF definition ON {config}.webhook
    FOR EACH ROW EXECUTE FUNCTION {config}.sign_webhook();

INSERT INTO {config}.webhook_secret (webhook_id, secret, is_shown)
SELECT w.webhook_id, {config}.make_webhook_secret(), false FROM {config}.webhook w
 WHERE nullif(w.definition ->> 'secretRef', '') IS NULL AND NOT EXISTS (
     SELECT FROM {config}.webhook_secret s WHERE s.webhook_id = w.webhook_id AND s.expires_at IS NULL);
