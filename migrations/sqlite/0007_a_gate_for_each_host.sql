-- A deploy gate for each host, and what a replica holds while it lives.

-- Replicas that live. One that does not renew its row until `lease_until`, by the clock of the database, is dead:
-- another replica deletes the row, and with it ends everything that the dead one held.
CREATE TABLE replicas (
    id          TEXT PRIMARY KEY,
    -- What an operator knows it by.
    name        TEXT NOT NULL,
    lease_until TEXT NOT NULL
) STRICT;

-- The host whose gate the slots of a pool pass.
ALTER TABLE pools ADD COLUMN host TEXT NOT NULL DEFAULT '';

-- NULL in rows of replicas of the version before, until a replica of this one fills them in.
ALTER TABLE deployments ADD COLUMN pool TEXT;
ALTER TABLE deployments ADD COLUMN host TEXT;
-- Who holds it. `lease_until` of what has a replica is far in the future, so that replicas of the version before leave
-- it alone; what has none is theirs until then.
ALTER TABLE deployments ADD COLUMN replica TEXT;
ALTER TABLE slot_locks ADD COLUMN replica TEXT;
ALTER TABLE image_locks ADD COLUMN replica TEXT;
UPDATE deployments SET pool = (SELECT pool FROM slots WHERE slots.name = deployments.slot), host = '';

-- The first of each pool are found without looking at the others, however many wait.
CREATE INDEX deployments_of_bots ON deployments (pool, arrival) WHERE state = 'waiting' AND bot_id IS NOT NULL;
CREATE INDEX deployments_for_nobody ON deployments (pool, arrival) WHERE state = 'waiting' AND bot_id IS NULL;
CREATE INDEX deployments_again ON deployments (pool, lease_until) WHERE state = 'again';
CREATE INDEX deployments_active ON deployments (host) WHERE state = 'active';
CREATE INDEX deployments_without_pool ON deployments (slot) WHERE pool IS NULL;
CREATE INDEX deployments_by_timeout ON deployments (timeout_at) WHERE bot_id IS NOT NULL;
