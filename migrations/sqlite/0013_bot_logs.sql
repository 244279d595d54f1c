-- The last of what each bot printed, at most 64 KiB: one row per bot, replaced as a whole.
CREATE TABLE bot_logs (
    bot_id        TEXT PRIMARY KEY,
    connection_id TEXT,
    -- [{"at", "text"}], oldest first; `at` is null where the time is not known.
    lines         TEXT NOT NULL,
    -- 1 where earlier lines were dropped.
    truncated     INTEGER NOT NULL,
    updated_at    TEXT NOT NULL
) STRICT;
