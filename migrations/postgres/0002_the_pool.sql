-- Pools, their slots, the queue in front of them, and the deployments that are waiting or under way.

CREATE TABLE pools (
    name                 TEXT PRIMARY KEY,
    platform             TEXT NOT NULL,
    provider             TEXT NOT NULL,
    standby              TEXT NOT NULL,
    recycle_after        BIGINT NOT NULL,
    max_slots            BIGINT NOT NULL,
    min_idle             BIGINT NOT NULL,
    -- What the configuration said last: an operator's change holds until the configuration changes.
    configured_max_slots BIGINT NOT NULL,
    configured_min_idle  BIGINT NOT NULL,
    -- The order in the configuration; NULL when the pool is no longer there.
    place                BIGINT,
    -- How many slots there are, so that the cap is known without counting them.
    slots                BIGINT NOT NULL DEFAULT 0,
    -- How long bots have held a slot: a mean in which the last counts for a tenth.
    mean_hold_ms         BIGINT
) WITH (fillfactor = 50);

CREATE TABLE slots (
    name              TEXT PRIMARY KEY,
    pool              TEXT NOT NULL,
    number            BIGINT NOT NULL,
    status            TEXT NOT NULL,
    status_since      TIMESTAMPTZ NOT NULL,
    bot_id            UUID,
    -- Grows when whatever runs in the slot is given up. Its token names it, so that an older agent is fenced off.
    generation        BIGINT NOT NULL,
    bots_since_fresh  BIGINT NOT NULL DEFAULT 0,
    provider_ref      TEXT,
    description       TEXT NOT NULL,
    last_used_at      TIMESTAMPTZ,
    error_message     TEXT,
    recovery_attempts BIGINT NOT NULL DEFAULT 0,
    created_at        TIMESTAMPTZ NOT NULL,
    UNIQUE (pool, number)
) WITH (fillfactor = 50);
CREATE INDEX slots_idle ON slots (pool, last_used_at NULLS FIRST, number) WHERE status = 'idle';
CREATE INDEX slots_out_of_order ON slots (pool, status) WHERE status IN ('creating', 'error', 'draining');
-- A bot has at most one slot.
CREATE UNIQUE INDEX slots_by_bot ON slots (bot_id) WHERE bot_id IS NOT NULL;

CREATE TABLE queue (
    bot_id     UUID PRIMARY KEY,
    -- Bots of one platform wait in one line, whichever of its pools becomes free first.
    platform   TEXT NOT NULL,
    pool       TEXT NOT NULL,
    priority   BIGINT NOT NULL,
    arrival    BIGINT GENERATED ALWAYS AS IDENTITY,
    queued_at  TIMESTAMPTZ NOT NULL,
    timeout_at TIMESTAMPTZ NOT NULL
);
CREATE INDEX queue_in_order ON queue (platform, priority, arrival);
CREATE INDEX queue_by_timeout ON queue (timeout_at);

-- By slot: for a bot, or, without one, to make a slot ready.
CREATE TABLE deployments (
    slot        TEXT PRIMARY KEY,
    bot_id      UUID UNIQUE,
    arrival     BIGINT GENERATED ALWAYS AS IDENTITY,
    -- waiting at the gate, or active behind it
    state       TEXT NOT NULL,
    asked_at    TIMESTAMPTZ NOT NULL,
    timeout_at  TIMESTAMPTZ NOT NULL,
    holder      UUID,
    lease_until TIMESTAMPTZ,
    last_error  TEXT
);
CREATE INDEX deployments_in_order ON deployments (state, arrival);

CREATE TABLE image_locks (
    image       TEXT NOT NULL,
    host        TEXT NOT NULL,
    holder      UUID NOT NULL,
    lease_until TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (image, host)
);

-- Who ends what runs in a slot: one at a time, so that nobody ends what was started there since.
CREATE TABLE slot_locks (
    slot        TEXT PRIMARY KEY,
    holder      UUID NOT NULL,
    lease_until TIMESTAMPTZ NOT NULL
);

ALTER TABLE bots ADD COLUMN pool TEXT;
ALTER TABLE bots ADD COLUMN slot TEXT;
-- Since when it should be speaking: from the provider's start on, or from the assignment where an agent waits already.
-- `connected_at`, which it replaces, stays for replicas of the version before.
ALTER TABLE bots ADD COLUMN awaited_since TIMESTAMPTZ;
UPDATE bots SET awaited_since = connected_at
 WHERE status IN ('reserved', 'starting', 'awaiting_admission', 'needs_help', 'active', 'stopping');
