-- Imports: what came of each, which rows were rejected and why, and the answers to repeated requests.

CREATE TABLE {config}.import (
    import_id   uuid        PRIMARY KEY,
    entity_id   bigint      NOT NULL,
    entity      text        NOT NULL,
    actor       text        NOT NULL,
    mode        text        NOT NULL,
    dry_run     boolean     NOT NULL,
    summary     jsonb       NOT NULL,
    started_at  timestamptz NOT NULL,
    finished_at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX import_finished_idx ON {config}.import (finished_at);

-- One line per reason, in the order of the rows. message is NULL where it follows from the others.
CREATE TABLE {config}.import_error (
    import_id   uuid    NOT NULL,
    ordinal     bigint  NOT NULL,
    row         bigint  NOT NULL,
    column_name text,
    code        text    NOT NULL,
    message     text,
    value       text,
    PRIMARY KEY (import_id, ordinal)
);

-- The answer that a request with this key got. request_hash says whether it is the same request.
CREATE TABLE {config}.idempotency_key (
    principal    text        NOT NULL,
    key          text        NOT NULL,
    request_hash bytea       NOT NULL,
    answer       json        NOT NULL,
    created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (principal, key)
);
CREATE INDEX idempotency_key_created_idx ON {config}.idempotency_key (created_at);
