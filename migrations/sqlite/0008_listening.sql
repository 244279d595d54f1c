-- When bots could be heard, by whichever process: silence is held against a bot only where somebody listened. The row of
-- a process that serves is written every two seconds; that it can be is what `GET /readyz` tells.
CREATE TABLE listening_spans (
    id          TEXT PRIMARY KEY,
    -- Both by the clock of the database.
    started_at  TEXT NOT NULL,
    heard_until TEXT NOT NULL
) STRICT;
