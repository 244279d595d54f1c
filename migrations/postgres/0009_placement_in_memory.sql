-- Placement decides on a copy in memory, and tests with each write that the copy was current.

-- One row. Whoever changes slots, pools, the queue, users, keys or which bots run replaces the token; a batch of placement
-- is written only if the token is the one that it was planned on.
--
-- While somebody holds a transaction open, PostgreSQL keeps every version of a row, and a lookup by its key steps over all of
-- them. `epoch` goes up with some updates, so that an index that ends with it finds the newest version first.
CREATE TABLE placement (
    epoch BIGINT PRIMARY KEY,
    token UUID NOT NULL
) WITH (fillfactor = 50);
INSERT INTO placement (epoch, token) VALUES (1, gen_random_uuid());

-- What each change of the token was about, so that others need not read everything again.
CREATE TABLE placement_journal (
    id      BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    before  UUID NOT NULL,
    token   UUID NOT NULL,
    at      TIMESTAMPTZ NOT NULL,
    changed TEXT NOT NULL
);

-- Fails the statement that it is part of: what a batch was planned on is no longer so.
CREATE FUNCTION placement_conflict(what TEXT) RETURNS BIGINT LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'placement conflict: %', what USING ERRCODE = 'GR001';
END $$;

-- Bots that are not at an end. A row is written with the bot and deleted with its end, so that nothing that a start or an end
-- changes is in an index of the bots themselves.
CREATE TABLE open_bots (
    user_id UUID NOT NULL,
    bot_id  UUID NOT NULL,
    PRIMARY KEY (user_id, bot_id)
);
INSERT INTO open_bots (user_id, bot_id)
SELECT user_id, id FROM bots
 WHERE status IN ('reserved', 'starting', 'awaiting_admission', 'needs_help', 'active', 'stopping');
DROP INDEX bots_running;
DROP INDEX bots_open;
DROP INDEX bots_open_by_user;
ALTER TABLE bots SET (fillfactor = 45);

-- Idle slots are found in memory.
DROP INDEX slots_idle;
DROP INDEX slots_by_threshold;
DROP INDEX slots_by_bot;
DROP INDEX slots_out_of_order;
ALTER TABLE slots RENAME COLUMN threshold TO expires_at;
-- As in `placement`. The token keeps a name from having two rows; no index does.
ALTER TABLE slots ADD COLUMN epoch BIGINT NOT NULL DEFAULT 0;
ALTER TABLE slots DROP CONSTRAINT slots_pkey;
CREATE UNIQUE INDEX slots_by_name ON slots (name, epoch DESC);
-- Not unique: an insert into a unique index checks every version that has the same key.
ALTER TABLE slots DROP CONSTRAINT slots_pool_number_key;
CREATE INDEX slots_by_number ON slots (pool, number);
-- 1 while it is being made, is in error, goes away, or waits to be cleared: what keepers look at. A hot slot that gets a bot
-- and gives it back is none of these.
ALTER TABLE slots ADD COLUMN unsettled BIGINT NOT NULL DEFAULT 0;
UPDATE slots SET unsettled = 1
 WHERE status IN ('creating', 'error', 'draining')
    OR EXISTS (SELECT 1 FROM bots WHERE bots.id = slots.bot_id AND bots.status IN ('completed', 'failed'));
CREATE INDEX slots_unsettled ON slots (pool, name) WHERE unsettled = 1;

ALTER TABLE pools RENAME COLUMN kinds TO attribute_sets;

-- Under `queue.order = "fair"`: in which round of its priority a bot is served.
ALTER TABLE queue ADD COLUMN turn BIGINT NOT NULL DEFAULT 0;
DROP INDEX queue_in_order;
CREATE INDEX queue_in_order ON queue (platform, priority, turn, arrival);
DROP INDEX queue_by_wants;
ALTER TABLE bots ADD COLUMN turn BIGINT NOT NULL DEFAULT 0;

-- No bot of the user goes before this.
ALTER TABLE users ADD COLUMN min_priority BIGINT NOT NULL DEFAULT 0;

-- A user's events are found among all, by their ids: an index on users would be written with every event.
DROP INDEX events_by_user;

-- How far a replica has followed the journal: rows before are not needed by it.
ALTER TABLE replicas ADD COLUMN followed BIGINT NOT NULL DEFAULT 0;
