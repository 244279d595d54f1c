-- Old data is deleted. Commands are deleted with their bot, which needs an index for all of them.
CREATE INDEX commands_by_bot ON commands (bot_id);

-- A bot whose data was deleted gets none again: its agent may send its log later.
ALTER TABLE bots ADD COLUMN data_deleted_at TIMESTAMPTZ;

-- The last event that was deleted. A stream cannot resume before it.
CREATE TABLE pruned_events (
    last_event BIGINT NOT NULL
) WITH (fillfactor = 50);
INSERT INTO pruned_events (last_event) VALUES (0);

-- Users that were deleted, until all their data is deleted too.
CREATE TABLE deleted_users (
    user_id    UUID PRIMARY KEY,
    deleted_at TIMESTAMPTZ NOT NULL
);
