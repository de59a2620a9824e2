-- What the operator knows, so that every worker of the API and every command can tell it, and what
-- people tell the operator. None of it is read with rows, so nothing here moves the revision.

CREATE TABLE {config}.reconciliation (
    singleton       boolean     PRIMARY KEY DEFAULT true CHECK (singleton),
    state           jsonb       NOT NULL DEFAULT '{}',
    source          text        NOT NULL DEFAULT '',
    mode            text        NOT NULL DEFAULT '',
    accepted_commit text,       -- the last one that was taken from the source; later ones build on it
    operator        text        NOT NULL DEFAULT '',
    heartbeat_at    timestamptz,
    requested       bigint      NOT NULL DEFAULT 0,
    requested_at    timestamptz,
    requested_by    text,
    handled         bigint      NOT NULL DEFAULT 0  -- the last request that a run has seen
);
INSERT INTO {config}.reconciliation DEFAULT VALUES;

-- '' is everything, else the folded name of an entity.
CREATE TABLE {config}.suspension (
    scope        text        PRIMARY KEY,
    suspended_by text        NOT NULL,
    reason       text        NOT NULL,
    suspended_at timestamptz NOT NULL DEFAULT now()
);

CREATE TABLE {config}.reconciliation_event (
    event_id    bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    occurred_at timestamptz NOT NULL DEFAULT now(),
    kind        text        NOT NULL,
    actor       text        NOT NULL,
    commit_id   text,
    message     text        NOT NULL
);

-- A plan that needs a person. It is applied only while planning anew gives the same plan_id.
CREATE TABLE {config}.waiting_plan (
    number      bigint      GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    plan_id     text        NOT NULL,
    commit_id   text,
    state       text        NOT NULL DEFAULT 'waiting'
        CHECK (state IN ('waiting', 'approved', 'rejected', 'applied', 'superseded')),
    reason      text        NOT NULL,
    document    json        NOT NULL,
    entities    text[]      NOT NULL,  -- folded names that it changes
    domains     text[]      NOT NULL,  -- theirs, before and after
    is_wider    boolean     NOT NULL,  -- it changes what belongs to no entity
    changes     integer     NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),
    decided_at  timestamptz,
    decided_by  text,
    comment     text        NOT NULL DEFAULT '',
    ended_at    timestamptz
);
CREATE UNIQUE INDEX waiting_plan_open_key ON {config}.waiting_plan (plan_id)
    WHERE state IN ('waiting', 'approved', 'rejected');
