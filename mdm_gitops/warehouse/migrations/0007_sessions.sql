-- Who is signed in with a browser. The cookie itself is not here: whoever reads this table, or a backup
-- of it, cannot come in with what he finds.

CREATE TABLE {config}.session (
    cookie_sha256 bytea       PRIMARY KEY,
    issuer        text        NOT NULL,
    subject       text        NOT NULL,
    name          text        NOT NULL,
    groups        text[]      NOT NULL,
    roles         text[]      NOT NULL,
    created_at    timestamptz NOT NULL,
    last_used_at  timestamptz NOT NULL,
    expires_at    timestamptz NOT NULL
);
CREATE INDEX session_expires_at_idx ON {config}.session (expires_at);
