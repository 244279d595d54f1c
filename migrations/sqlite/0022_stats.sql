-- The figures that `GET /admin/stats` shows, by minute and by hour. The keeper `stats` writes and prunes them.

-- How the bot starts that got a slot with this event: hot, stopped or cold. NULL if it got none, or in an older event.
ALTER TABLE events ADD COLUMN start_kind TEXT;

CREATE TABLE stats (
    -- minute or hour
    resolution TEXT NOT NULL,
    -- Empty for all pools together.
    pool       TEXT NOT NULL,
    -- The beginning of the minute or hour.
    at         TEXT NOT NULL,
    -- A JSON object: `domain::stats::Figures`.
    figures    TEXT NOT NULL,
    PRIMARY KEY (resolution, pool, at)
) STRICT, WITHOUT ROWID;
CREATE INDEX stats_by_time ON stats (resolution, at);

-- One row: up to which event the figures are complete, and the last minute in which the slots were counted.
CREATE TABLE stats_position (
    last_event INTEGER NOT NULL,
    sampled_at TEXT
) STRICT;
INSERT INTO stats_position (last_event) SELECT coalesce(max(id), 0) FROM events;
