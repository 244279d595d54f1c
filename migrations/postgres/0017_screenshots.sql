-- The last screenshot of each bot, at most 512 KiB: one row per bot, replaced as a whole.
CREATE TABLE screenshots (
    bot_id        UUID PRIMARY KEY,
    connection_id UUID NOT NULL,
    -- image/png or image/jpeg.
    content_type  TEXT NOT NULL,
    image         BYTEA NOT NULL,
    at            TIMESTAMPTZ NOT NULL
);
-- An image is compressed already.
ALTER TABLE screenshots ALTER COLUMN image SET STORAGE EXTERNAL;
