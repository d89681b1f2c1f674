-- What is written here is deleted at once: the pages stay free, for deletions on a full disk.
CREATE TABLE spare (
	id    INTEGER PRIMARY KEY CHECK (id = 1),
	bytes BLOB NOT NULL
) STRICT;
