-- Filters, orders and columns that people keep for themselves. They belong to an entity's identity: a
-- rename keeps them, and a removed entity that comes back has them again.
CREATE TABLE {config}.saved_filter (
    entity_id  bigint      NOT NULL REFERENCES {config}.entity ON DELETE CASCADE,
    actor      text        NOT NULL,
    name       text        NOT NULL,
    filter     text        NOT NULL,
    sort       text        NOT NULL,
    columns    text[]      NOT NULL,
    is_default boolean     NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),
    updated_at timestamptz NOT NULL DEFAULT now(),
    PRIMARY KEY (entity_id, actor, name)
);
CREATE UNIQUE INDEX saved_filter_default_idx ON {config}.saved_filter (entity_id, actor)
    WHERE is_default;
