-- Providers: what they said, how far their pulls have come, and how often they may be asked.

-- What went wrong in slots. It stays when the slot goes, so that it can be explained a day later.
CREATE TABLE failures (
    slot   TEXT NOT NULL,
    bot_id TEXT,
    at     TEXT NOT NULL,
    words  TEXT NOT NULL,
    -- The last lines of what ran in the slot.
    log    TEXT,
    PRIMARY KEY (slot, at)
) STRICT;
CREATE INDEX failures_by_age ON failures (at);
CREATE INDEX failures_of_bots ON failures (bot_id, at) WHERE bot_id IS NOT NULL;

ALTER TABLE image_locks ADD COLUMN pulling_since TEXT;
ALTER TABLE image_locks ADD COLUMN layers INTEGER NOT NULL DEFAULT 0;
ALTER TABLE image_locks ADD COLUMN layers_done INTEGER NOT NULL DEFAULT 0;
ALTER TABLE image_locks ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
ALTER TABLE image_locks ADD COLUMN bytes_done INTEGER NOT NULL DEFAULT 0;

-- How often a start was tried. Between two tries a deployment is in the state `again`, behind nobody and before nobody: its
-- place at the gate is another's, and `lease_until` is when it may have one again.
ALTER TABLE deployments ADD COLUMN tries INTEGER NOT NULL DEFAULT 0;

-- Times are in milliseconds by the clock of the database.
CREATE TABLE budgets (
    name          TEXT PRIMARY KEY,
    blocked_until INTEGER NOT NULL
) STRICT;

-- The requests of a budget that still count.
CREATE TABLE budget_requests (
    budget TEXT NOT NULL,
    at     INTEGER NOT NULL
) STRICT;
CREATE INDEX budget_requests_in_order ON budget_requests (budget, at);
