-- The sessions of people who signed in with a browser. The cookie has a random value; only its hash is stored.
CREATE TABLE browser_sessions (
    token_hash  TEXT PRIMARY KEY,
    -- The user and its API key. Null for an operator.
    user_id     TEXT REFERENCES users (id) ON DELETE CASCADE,
    key_id      TEXT REFERENCES api_keys (id) ON DELETE CASCADE,
    -- For an operator: binds the session to the admin token without showing anything of it.
    admin_proof TEXT,
    created_at  TEXT NOT NULL,
    expires_at  TEXT NOT NULL
) STRICT;
CREATE INDEX browser_sessions_by_user ON browser_sessions (user_id, created_at);
CREATE INDEX browser_sessions_by_end ON browser_sessions (expires_at);
