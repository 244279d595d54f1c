-- Hot slots that nobody needs are stopped, and those that run an old image are replaced.

-- 1 for a slot of a hot pool that is stopped while it is idle, or is about to be.
ALTER TABLE slots ADD COLUMN stopped INTEGER NOT NULL DEFAULT 0;
-- What stands for the image and all else that it was last started with; NULL when it was not, or the provider does not say.
ALTER TABLE slots ADD COLUMN recipe TEXT;
-- The same as it is configured now.
ALTER TABLE pools ADD COLUMN recipe TEXT;
-- How long a hot slot above min_idle may be idle; NULL for ever.
ALTER TABLE pools ADD COLUMN idle_timeout_ms INTEGER;
