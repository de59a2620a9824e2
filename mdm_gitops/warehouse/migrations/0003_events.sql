-- What happened to rows: each committed change once, with its old and new values.
--
-- A writer inserts its events and, last, one row of change_set, whose seq is drawn after all of its row
-- locks are held: two transactions that touch the same record get their seq in the order in which
-- they commit. Nobody waits for anybody. Whoever reads numbers the sets that became visible since, in
-- that order (feed_position), so an id appears only after the commit of its event, and none is left out.

CREATE SEQUENCE {config}.change_set_key;

-- The events of one transaction. first_id is NULL until a reader has numbered the set.
CREATE TABLE {config}.change_set (
    seq         bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    key         bigint      NOT NULL UNIQUE,
    first_id    bigint,
    events      integer     NOT NULL CHECK (events > 0),
    occurred_at timestamptz NOT NULL,
    actor       text        NOT NULL,
    commit_id   text
);
CREATE UNIQUE INDEX change_set_first_id_idx ON {config}.change_set (first_id)
    WHERE first_id IS NOT NULL;
CREATE INDEX change_set_unnumbered_idx ON {config}.change_set (seq) WHERE first_id IS NULL;
CREATE INDEX change_set_occurred_idx ON {config}.change_set (occurred_at);

-- The id of an event is first_id + ordinal. old and new are the row's own columns; new is NULL after a
-- hard delete, old before a creation. The actor is that of the set where it is NULL: requests of
-- several callers may share one transaction.
CREATE TABLE {config}.event (
    change_set bigint  NOT NULL,
    ordinal    integer NOT NULL,
    entity_id  bigint  NOT NULL,
    record_id  uuid    NOT NULL,
    action     text    NOT NULL,
    version    integer NOT NULL,
    actor      text,
    old        json,
    new        json,
    detail     jsonb,
    PRIMARY KEY (change_set, ordinal)
);
CREATE INDEX event_record_idx ON {config}.event (record_id);

-- The id that was given last; locked by the reader who numbers.
CREATE TABLE {config}.feed_position (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    last_id   bigint  NOT NULL
);
INSERT INTO {config}.feed_position (last_id) VALUES (0);
