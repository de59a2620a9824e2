-- How many requests each client has made in its present window. Not logged: after a crash of the
-- server the counts begin again, which costs nobody anything.
CREATE UNLOGGED TABLE {config}.rate_window (
    client  text        PRIMARY KEY,
    started timestamptz NOT NULL,
    used    bigint      NOT NULL
) WITH (fillfactor = 50);
