-- Requirements: what bots ask of their slots, and what slots have.

-- As it was asked; NULL when nothing was.
ALTER TABLE bots ADD COLUMN requirements TEXT;
-- Of a bot that is or was in line: its place there, until when it waits, and how often it was put back because there was no
-- room for its requirements.
ALTER TABLE bots ADD COLUMN line_arrival INTEGER;
ALTER TABLE bots ADD COLUMN line_until TEXT;
ALTER TABLE bots ADD COLUMN line_returns INTEGER NOT NULL DEFAULT 0;

-- What a slot has, as one word for each: class, usage class, instance type, cpu, memory in MiB.
ALTER TABLE slots ADD COLUMN attributes TEXT NOT NULL DEFAULT '- on-demand - 0 0';
-- Until when it may be given out while it is idle.
ALTER TABLE slots ADD COLUMN threshold TEXT;

-- The attributes that slots of a pool have, those of new ones first.
ALTER TABLE pools ADD COLUMN kinds TEXT NOT NULL DEFAULT '["- on-demand - 0 0"]';
ALTER TABLE pools ADD COLUMN expire_after_ms INTEGER;

-- What it waits for: the requirements as one text, empty for any slot. And until when it is passed over where there was no
-- room for it.
ALTER TABLE queue ADD COLUMN wants TEXT NOT NULL DEFAULT '';
ALTER TABLE queue ADD COLUMN not_before TEXT;
CREATE INDEX queue_by_wants ON queue (platform, wants, priority, arrival);

-- Slots of one kind are together, so that those that fit are found without looking at the others.
DROP INDEX slots_idle;
CREATE INDEX slots_idle ON slots (pool, attributes, last_used_at, number) WHERE status = 'idle';
CREATE INDEX slots_by_threshold ON slots (pool, threshold) WHERE status = 'idle' AND threshold IS NOT NULL;
