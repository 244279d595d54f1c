-- A slot's token is good for one assignment: what tells it from those before and after it.

-- Tells a slot from an earlier one of the same name.
ALTER TABLE slots ADD COLUMN incarnation TEXT NOT NULL DEFAULT '00000000-0000-0000-0000-000000000000';
UPDATE slots SET incarnation = lower(
    hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-' || hex(randomblob(2)) || '-' || hex(randomblob(2)) || '-' ||
    hex(randomblob(6)));
-- How many bots its agent has had since the slot was started.
ALTER TABLE slots ADD COLUMN token_number INTEGER NOT NULL DEFAULT 0;
-- The agent process that waits, or has the assignment, by the name that it has chosen.
ALTER TABLE slots ADD COLUMN agent TEXT;
