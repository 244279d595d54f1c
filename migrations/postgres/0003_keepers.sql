-- The keepers: who leads them, and what each has done.

-- What only one process at a time may do, until its lease ends by the clock of the database.
CREATE TABLE leases (
    name        TEXT PRIMARY KEY,
    holder      UUID NOT NULL,
    -- What an operator knows the holder by.
    holder_name TEXT NOT NULL,
    lease_until TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE keepers (
    name     TEXT PRIMARY KEY,
    -- How often a run was asked for by hand, and up to which of these it has been done.
    asked    BIGINT NOT NULL DEFAULT 0,
    answered BIGINT NOT NULL DEFAULT 0,
    -- What the last run that was asked for did, and its error.
    answer   TEXT,
    last_run TIMESTAMPTZ,
    took_ms  BIGINT,
    did      TEXT NOT NULL DEFAULT '{}',
    error    TEXT,
    next_run TIMESTAMPTZ
) WITH (fillfactor = 50);
