-- Users, bots and all that is told of them.
--
-- Hot rows carry no foreign keys: each is written in a transaction that has just read its parent, no parent is ever
-- deleted, and a foreign key would cost every insert a look-up and a lock.

CREATE TABLE settings (
    name  TEXT PRIMARY KEY,
    value TEXT NOT NULL
);

CREATE TABLE users (
    id                  UUID PRIMARY KEY,
    email               TEXT NOT NULL,
    name                TEXT NOT NULL,
    image_url           TEXT,
    max_concurrent_bots BIGINT NOT NULL CHECK (max_concurrent_bots >= 0),
    data                JSON NOT NULL,
    created_at          TIMESTAMPTZ NOT NULL,
    updated_at          TIMESTAMPTZ NOT NULL
);

CREATE TABLE api_keys (
    id         UUID PRIMARY KEY,
    user_id    UUID NOT NULL REFERENCES users (id),
    hash       TEXT NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    expires_at TIMESTAMPTZ
);
CREATE INDEX api_keys_by_user ON api_keys (user_id);

CREATE TABLE bots (
    id                UUID PRIMARY KEY,
    user_id           UUID NOT NULL,
    platform          TEXT NOT NULL,
    native_meeting_id TEXT NOT NULL,
    meeting_url       TEXT NOT NULL,
    bot_display_name  TEXT,
    status            TEXT NOT NULL,
    status_since      TIMESTAMPTZ NOT NULL,
    reason            TEXT,
    error             TEXT,
    exit_code         BIGINT,
    container_id      TEXT,
    connection_id     UUID,
    -- Since when it has this connection.
    connected_at      TIMESTAMPTZ,
    priority          BIGINT NOT NULL,
    queue_timeout_ms  BIGINT NOT NULL,
    config            JSON NOT NULL,
    metadata          JSON NOT NULL,
    stop_asked_at     TIMESTAMPTZ,
    start_time        TIMESTAMPTZ,
    end_time          TIMESTAMPTZ,
    created_at        TIMESTAMPTZ NOT NULL,
    updated_at        TIMESTAMPTZ NOT NULL
);
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
    connection_id UUID PRIMARY KEY,
    bot_id        UUID NOT NULL REFERENCES bots (id),
    container_id  TEXT,
    started_at    TIMESTAMPTZ NOT NULL,
    joined_at     TIMESTAMPTZ,
    ended_at      TIMESTAMPTZ
);
CREATE INDEX sessions_by_bot ON sessions (bot_id);

-- Narrow and without a second index, because it is written all the time.
CREATE TABLE heartbeats (
    connection_id UUID PRIMARY KEY,
    at            TIMESTAMPTZ NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE commands (
    id         UUID PRIMARY KEY,
    bot_id     UUID NOT NULL REFERENCES bots (id),
    action     TEXT NOT NULL,
    payload    JSON NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    acked_at   TIMESTAMPTZ
);
CREATE INDEX commands_open ON commands (bot_id, id) WHERE acked_at IS NULL;

CREATE TABLE transcript_segments (
    id            BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    bot_id        UUID NOT NULL,
    connection_id UUID NOT NULL,
    digest        TEXT NOT NULL,
    start_time    DOUBLE PRECISION NOT NULL,
    end_time      DOUBLE PRECISION NOT NULL,
    text          TEXT NOT NULL,
    speaker       TEXT,
    language      TEXT,
    created_at    TIMESTAMPTZ NOT NULL,
    UNIQUE (bot_id, digest)
);

CREATE TABLE events (
    id          BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    bot_id      UUID NOT NULL,
    user_id     UUID NOT NULL,
    at          TIMESTAMPTZ NOT NULL,
    kind        TEXT NOT NULL,
    from_status TEXT,
    to_status   TEXT,
    reason      TEXT,
    actor       TEXT NOT NULL
);
CREATE INDEX events_by_bot ON events (bot_id, id);
CREATE INDEX events_by_user ON events (user_id, id);

CREATE TABLE idempotency_keys (
    user_id    UUID NOT NULL,
    key        TEXT NOT NULL,
    body_hash  TEXT NOT NULL,
    bot_id     UUID NOT NULL,
    created_at TIMESTAMPTZ NOT NULL,
    PRIMARY KEY (user_id, key)
);
