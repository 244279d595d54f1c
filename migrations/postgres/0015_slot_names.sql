-- Not unique: an insert into a unique index checks every version of the row that has the same key. While another
-- transaction is held open, these are many. The placement token keeps a name from having two rows.
DROP INDEX slots_by_name;
CREATE INDEX slots_by_name ON slots (name, epoch DESC);
