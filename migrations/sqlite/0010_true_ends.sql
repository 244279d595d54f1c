-- When a bot was first in its meeting, and whose fault its end was.
ALTER TABLE bots ADD COLUMN joined_at TEXT;
ALTER TABLE bots ADD COLUMN fault TEXT;
UPDATE bots SET joined_at = (SELECT min(joined_at) FROM sessions WHERE sessions.bot_id = bots.id)
 WHERE id IN (SELECT bot_id FROM open_bots);
