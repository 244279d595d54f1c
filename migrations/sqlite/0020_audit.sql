-- The actions of operators. Rows are never changed, and nothing deletes them yet.
CREATE TABLE audit (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      TEXT NOT NULL,
    action  TEXT NOT NULL,
    -- The id of the user or bot, or the name of the pool, slot or keeper; null for several.
    subject TEXT,
    -- A JSON object without secrets.
    detail  TEXT NOT NULL,
    -- The address at the other end of the connection.
    address TEXT NOT NULL
) STRICT;
