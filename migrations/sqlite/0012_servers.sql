-- What tools need to know of the servers, and of pools that left the configuration.

-- The provider of a pool as it was configured last, without secrets: what is needed to delete its slots.
ALTER TABLE pools ADD COLUMN settings TEXT NOT NULL DEFAULT '{}';

-- The servers that run: each writes its row every few seconds, and deletes it when it stops.
CREATE TABLE servers (
    id      TEXT PRIMARY KEY,
    -- By the clock of the database.
    seen_at TEXT NOT NULL,
    -- Where it is and how it was started: a JSON object.
    facts   TEXT NOT NULL
) STRICT;
