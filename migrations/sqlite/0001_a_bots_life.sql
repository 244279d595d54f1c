-- Users, bots and all that is told of them. Ids are UUIDs and times are RFC 3339 in UTC with six digits, as text that
-- sorts; documents are JSON.
--
-- Hot rows carry no foreign keys: each is written in a transaction that has just read its parent, no parent is ever
-- deleted, and a foreign key would cost every insert a look-up and a lock.

CREATE TABLE settings (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT;

CREATE TABLE users (
    id                  TEXT PRIMARY KEY,
    email               TEXT NOT NULL,
    name                TEXT NOT NULL,
    image_url           TEXT,
    max_concurrent_bots INTEGER NOT NULL CHECK (max_concurrent_bots >= 0),
    data                TEXT NOT NULL,
    created_at          TEXT NOT NULL,
    updated_at          TEXT NOT NULL
) STRICT;

CREATE TABLE api_keys (
    id         TEXT PRIMARY KEY,
    user_id    TEXT NOT NULL REFERENCES users (id),
    hash       TEXT NOT NULL,
    created_at TEXT NOT NULL,
    expires_at TEXT
) STRICT;
CREATE INDEX api_keys_by_user ON api_keys (user_id);

CREATE TABLE bots (
    id                TEXT PRIMARY KEY,
    user_id           TEXT NOT NULL,
    platform          TEXT NOT NULL,
    native_meeting_id TEXT NOT NULL,
    meeting_url       TEXT NOT NULL,
    bot_display_name  TEXT,
    status            TEXT NOT NULL,
    status_since      TEXT NOT NULL,
    reason            TEXT,
    error             TEXT,
    exit_code         INTEGER,
    container_id      TEXT,
    connection_id     TEXT,
    -- Since when it has this connection.
    connected_at      TEXT,
    priority          INTEGER NOT NULL,
    queue_timeout_ms  INTEGER NOT NULL,
    config            TEXT NOT NULL,
    metadata          TEXT NOT NULL,
    stop_asked_at     TEXT,
    start_time        TEXT,
    end_time          TEXT,
    created_at        TEXT NOT NULL,
    updated_at        TEXT NOT NULL
) STRICT;
-- A list is read newest first, and ids sort by the time they were made.
CREATE INDEX bots_by_user ON bots (user_id, id);
-- One running bot per user and meeting. It is also what the limit is counted on.
CREATE UNIQUE INDEX bots_running ON bots (user_id, platform, native_meeting_id)
    WHERE status IN ('reserved', 'starting', 'awaiting_admission', 'needs_help', 'active');
CREATE INDEX bots_open ON bots (status)
    WHERE status IN ('reserved', 'starting', 'awaiting_admission', 'needs_help', 'active', 'stopping');
CREATE INDEX bots_open_by_user ON bots (user_id, id)
    WHERE status IN ('reserved', 'starting', 'awaiting_admission', 'needs_help', 'active', 'stopping');

CREATE TABLE sessions (
    connection_id TEXT PRIMARY KEY,
    bot_id        TEXT NOT NULL REFERENCES bots (id),
    container_id  TEXT,
    started_at    TEXT NOT NULL,
    joined_at     TEXT,
    ended_at      TEXT
) STRICT;
CREATE INDEX sessions_by_bot ON sessions (bot_id);

-- Narrow and without a second index, because it is written all the time.
CREATE TABLE heartbeats (
    connection_id TEXT PRIMARY KEY,
    at            TEXT NOT NULL
) STRICT;

CREATE TABLE commands (
    id         TEXT PRIMARY KEY,
    bot_id     TEXT NOT NULL REFERENCES bots (id),
    action     TEXT NOT NULL,
    payload    TEXT NOT NULL,
    created_at TEXT NOT NULL,
    acked_at   TEXT
) STRICT;
CREATE INDEX commands_open ON commands (bot_id, id) WHERE acked_at IS NULL;

CREATE TABLE transcript_segments (
    id            INTEGER PRIMARY KEY AUTOINCREMENT,
    bot_id        TEXT NOT NULL,
    connection_id TEXT NOT NULL,
    digest        TEXT NOT NULL,
    start_time    REAL NOT NULL,
    end_time      REAL NOT NULL,
    text          TEXT NOT NULL,
    speaker       TEXT,
    language      TEXT,
    created_at    TEXT NOT NULL,
    UNIQUE (bot_id, digest)
) STRICT;

CREATE TABLE events (
    id          INTEGER PRIMARY KEY AUTOINCREMENT,
    bot_id      TEXT NOT NULL,
    user_id     TEXT NOT NULL,
    at          TEXT NOT NULL,
    kind        TEXT NOT NULL,
    from_status TEXT,
    to_status   TEXT,
    reason      TEXT,
    actor       TEXT NOT NULL
) STRICT;
CREATE INDEX events_by_bot ON events (bot_id, id);
CREATE INDEX events_by_user ON events (user_id, id);

CREATE TABLE idempotency_keys (
    user_id    TEXT NOT NULL,
    key        TEXT NOT NULL,
    body_hash  TEXT NOT NULL,
    bot_id     TEXT NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (user_id, key)
) STRICT;
