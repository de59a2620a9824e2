-- Rows that were merged into others: what was decided, what it took to undo it, and where the identifier of
-- a merged row leads. A merge counts ("stands") while it is merged or its undoing waits for approval.
CREATE TABLE {config}.merge (
    merge_id          uuid        PRIMARY KEY,
    seq               bigint      GENERATED ALWAYS AS IDENTITY UNIQUE,
    entity_id         bigint      NOT NULL REFERENCES {config}.entity ON DELETE CASCADE,
    survivor_id       uuid        NOT NULL,
    duplicate_id      uuid        NOT NULL CHECK (duplicate_id <> survivor_id),
    state             text        NOT NULL
        CHECK (state IN ('pending', 'merged', 'undo_pending', 'undone', 'rejected')),
    -- The versions of both rows that it rests on while it is pending, else those that it has made.
    survivor_version  integer     NOT NULL,
    duplicate_version integer     NOT NULL,
    given             jsonb       NOT NULL, -- explicit values, as texts by physical column
    -- Per column of the survivor: column, from, rule; and old and new (texts) where it changed.
    columns           jsonb       NOT NULL,
    keep_later_edits  boolean     NOT NULL DEFAULT false, -- of the undoing that waits
    proposed_by       text        NOT NULL, -- of what waits last: the merge or its undoing
    proposed_at       timestamptz NOT NULL,
    merged_by         text,
    merged_at         timestamptz,
    undone_by         text,
    undone_at         timestamptz,
    comment           text
);
CREATE INDEX merge_entity_idx ON {config}.merge (entity_id, seq DESC);
CREATE INDEX merge_duplicate_idx ON {config}.merge (duplicate_id, seq DESC);
CREATE INDEX merge_survivor_idx ON {config}.merge (survivor_id);

-- What a merge has relinked: rows, and proposals as they were submitted then.
CREATE TABLE {config}.merge_link (
    merge_id     uuid    NOT NULL REFERENCES {config}.merge ON DELETE CASCADE,
    entity_id    bigint  NOT NULL,
    column_name  text    NOT NULL,
    is_proposal  boolean NOT NULL,
    row_id       uuid    NOT NULL,
    submitted_at timestamptz,
    PRIMARY KEY (merge_id, entity_id, column_name, is_proposal, row_id)
);
