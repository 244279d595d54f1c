-- Only for pools that start the bot's command ahead: how long it may take to become ready, and how long it may then wait.
ALTER TABLE pools ADD COLUMN ready_timeout_ms INTEGER;
ALTER TABLE pools ADD COLUMN max_warm_age_ms INTEGER;
