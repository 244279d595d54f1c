-- Pools, their slots, the queue in front of them, and the deployments that are waiting or under way.

CREATE TABLE pools (
    name                 TEXT PRIMARY KEY,
    platform             TEXT NOT NULL,
    provider             TEXT NOT NULL,
    standby              TEXT NOT NULL,
    recycle_after        INTEGER NOT NULL,
    max_slots            INTEGER NOT NULL,
    min_idle             INTEGER NOT NULL,
    -- What the configuration said last: an operator's change holds until the configuration changes.
    configured_max_slots INTEGER NOT NULL,
    configured_min_idle  INTEGER NOT NULL,
    -- The order in the configuration; NULL when the pool is no longer there.
    place                INTEGER,
    -- How many slots there are, so that the cap is known without counting them.
    slots                INTEGER NOT NULL DEFAULT 0,
    -- How long bots have held a slot: a mean in which the last counts for a tenth.
    mean_hold_ms         INTEGER
) STRICT;

CREATE TABLE slots (
    name              TEXT PRIMARY KEY,
    pool              TEXT NOT NULL,
    number            INTEGER NOT NULL,
    status            TEXT NOT NULL,
    status_since      TEXT NOT NULL,
    bot_id            TEXT,
    -- Grows when whatever runs in the slot is given up. Its token names it, so that an older agent is fenced off.
    generation        INTEGER NOT NULL,
    bots_since_fresh  INTEGER NOT NULL DEFAULT 0,
    provider_ref      TEXT,
    description       TEXT NOT NULL,
    last_used_at      TEXT,
    error_message     TEXT,
    recovery_attempts INTEGER NOT NULL DEFAULT 0,
    created_at        TEXT NOT NULL,
    UNIQUE (pool, number)
) STRICT;
CREATE INDEX slots_idle ON slots (pool, last_used_at, number) WHERE status = 'idle';
CREATE INDEX slots_out_of_order ON slots (pool, status) WHERE status IN ('creating', 'error', 'draining');
-- A bot has at most one slot.
CREATE UNIQUE INDEX slots_by_bot ON slots (bot_id) WHERE bot_id IS NOT NULL;

CREATE TABLE queue (
    bot_id     TEXT NOT NULL UNIQUE,
    -- Bots of one platform wait in one line, whichever of its pools becomes free first.
    platform   TEXT NOT NULL,
    pool       TEXT NOT NULL,
    priority   INTEGER NOT NULL,
    arrival    INTEGER PRIMARY KEY AUTOINCREMENT,
    queued_at  TEXT NOT NULL,
    timeout_at TEXT NOT NULL
) STRICT;
CREATE INDEX queue_in_order ON queue (platform, priority, arrival);
CREATE INDEX queue_by_timeout ON queue (timeout_at);

-- By slot: for a bot, or, without one, to make a slot ready.
CREATE TABLE deployments (
    arrival     INTEGER PRIMARY KEY AUTOINCREMENT,
    slot        TEXT NOT NULL UNIQUE,
    bot_id      TEXT UNIQUE,
    -- waiting at the gate, or active behind it
    state       TEXT NOT NULL,
    asked_at    TEXT NOT NULL,
    timeout_at  TEXT NOT NULL,
    holder      TEXT,
    lease_until TEXT,
    last_error  TEXT
) STRICT;
CREATE INDEX deployments_in_order ON deployments (state, arrival);

CREATE TABLE image_locks (
    image       TEXT NOT NULL,
    host        TEXT NOT NULL,
    holder      TEXT NOT NULL,
    lease_until TEXT NOT NULL,
    PRIMARY KEY (image, host)
) STRICT;

-- Who ends what runs in a slot: one at a time, so that nobody ends what was started there since.
CREATE TABLE slot_locks (
    slot        TEXT PRIMARY KEY,
    holder      TEXT NOT NULL,
    lease_until TEXT NOT NULL
) STRICT;

ALTER TABLE bots ADD COLUMN pool TEXT;
ALTER TABLE bots ADD COLUMN slot TEXT;
-- Since when it should be speaking: from the provider's start on, or from the assignment where an agent waits already.
-- `connected_at`, which it replaces, stays for replicas of the version before.
ALTER TABLE bots ADD COLUMN awaited_since TEXT;
UPDATE bots SET awaited_since = connected_at
 WHERE status IN ('reserved', 'starting', 'awaiting_admission', 'needs_help', 'active', 'stopping');
