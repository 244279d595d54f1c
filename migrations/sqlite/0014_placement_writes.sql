-- A batch of placement finds out by itself that its token was another, or that a row was not found.
CREATE TABLE placement_without_checks (
    -- Only PostgreSQL needs more than one, where old versions of the row may be left.
    epoch INTEGER PRIMARY KEY CHECK (epoch = 1),
    token TEXT NOT NULL
) STRICT;
INSERT INTO placement_without_checks (epoch, token) SELECT epoch, token FROM placement;
DROP TABLE placement;
ALTER TABLE placement_without_checks RENAME TO placement;
