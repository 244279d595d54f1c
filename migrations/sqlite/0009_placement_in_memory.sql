-- Placement decides on a copy in memory, and tests with each write that the copy was current.

-- One row. Whoever changes slots, pools, the queue, users, keys or which bots run replaces the token; a batch of placement
-- is written only if the token is the one that it was planned on.
CREATE TABLE placement (
    -- Only PostgreSQL needs more than one, where old versions of the row may be left.
    epoch   INTEGER PRIMARY KEY CHECK (epoch = 1),
    token   TEXT NOT NULL,
    -- Written by a batch to give itself up: the token was another, or a row was not found.
    fitted  INTEGER NOT NULL DEFAULT 1 CONSTRAINT token_fitted CHECK (fitted = 1),
    found   INTEGER NOT NULL DEFAULT 1 CONSTRAINT rows_found CHECK (found = 1)
) STRICT;
INSERT INTO placement (epoch, token) VALUES (1, lower(hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-8' || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))));

-- What each change of the token was about, so that others need not read everything again.
CREATE TABLE placement_journal (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    before  TEXT NOT NULL,
    token   TEXT NOT NULL,
    at      TEXT NOT NULL,
    changed TEXT NOT NULL
) STRICT;

-- Bots that are not at an end. A row is written with the bot and deleted with its end, so that nothing that a start or an end
-- changes is in an index of the bots themselves.
CREATE TABLE open_bots (
    user_id TEXT NOT NULL,
    bot_id  TEXT NOT NULL,
    PRIMARY KEY (user_id, bot_id)
) STRICT, WITHOUT ROWID;
INSERT INTO open_bots (user_id, bot_id)
SELECT user_id, id FROM bots
 WHERE status IN ('reserved', 'starting', 'awaiting_admission', 'needs_help', 'active', 'stopping');
DROP INDEX bots_running;
DROP INDEX bots_open;
DROP INDEX bots_open_by_user;

-- Idle slots are found in memory.
DROP INDEX slots_idle;
DROP INDEX slots_by_threshold;
DROP INDEX slots_by_bot;
DROP INDEX slots_out_of_order;
ALTER TABLE slots RENAME COLUMN threshold TO expires_at;
-- 1 while it is being made, is in error, goes away, or waits to be cleared: what keepers look at. A hot slot that gets a bot
-- and gives it back is none of these.
ALTER TABLE slots ADD COLUMN unsettled INTEGER NOT NULL DEFAULT 0;
UPDATE slots SET unsettled = 1
 WHERE status IN ('creating', 'error', 'draining')
    OR EXISTS (SELECT 1 FROM bots WHERE bots.id = slots.bot_id AND bots.status IN ('completed', 'failed'));
CREATE INDEX slots_unsettled ON slots (pool, name) WHERE unsettled = 1;

ALTER TABLE pools RENAME COLUMN kinds TO attribute_sets;

-- Under `queue.order = "fair"`: in which round of its priority a bot is served.
ALTER TABLE queue ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;
DROP INDEX queue_in_order;
CREATE INDEX queue_in_order ON queue (platform, priority, turn, arrival);
DROP INDEX queue_by_wants;
ALTER TABLE bots ADD COLUMN turn INTEGER NOT NULL DEFAULT 0;

-- No bot of the user goes before this.
ALTER TABLE users ADD COLUMN min_priority INTEGER NOT NULL DEFAULT 0;

-- A user's events are found among all, by their ids: an index on users would be written with every event.
DROP INDEX events_by_user;

-- How far a replica has followed the journal: rows before are not needed by it.
ALTER TABLE replicas ADD COLUMN followed INTEGER NOT NULL DEFAULT 0;
