-- The last screenshot of each bot, at most 512 KiB: one row per bot, replaced as a whole.
CREATE TABLE screenshots (
    bot_id        TEXT PRIMARY KEY,
    connection_id TEXT NOT NULL,
    -- image/png or image/jpeg.
    content_type  TEXT NOT NULL,
    at            TEXT NOT NULL,
    -- Last: the columns behind a large value are slow to reach.
    image         BLOB NOT NULL
) STRICT;
