-- Not unique: an insert into a unique index checks every version that has the same key, and while somebody holds a
-- transaction open there are many. The token keeps a name from having two rows.
DROP INDEX slots_by_name;
CREATE INDEX slots_by_name ON slots (name, epoch DESC);
