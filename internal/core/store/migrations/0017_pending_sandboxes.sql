CREATE TABLE pending_sandboxes (
	id TEXT PRIMARY KEY,
	owner TEXT NOT NULL,
	admin INTEGER NOT NULL,
	request BLOB NOT NULL,
	created_at INTEGER NOT NULL,
	state TEXT NOT NULL,
	reason TEXT NOT NULL,
	ended_at INTEGER
) STRICT;
