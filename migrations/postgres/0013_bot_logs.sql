-- The last of what each bot printed, at most 64 KiB: one row per bot, replaced as a whole.
CREATE TABLE bot_logs (
    bot_id        UUID PRIMARY KEY,
    connection_id UUID,
    -- [{"at", "text"}], oldest first; `at` is null where the time is not known.
    lines         JSON NOT NULL,
    -- 1 where earlier lines were dropped.
    truncated     BIGINT NOT NULL,
    updated_at    TIMESTAMPTZ NOT NULL
);
