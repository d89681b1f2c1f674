-- The state is creating, ready or deleting. The provider knows a volume by its ID.
CREATE TABLE volumes (
	id         TEXT PRIMARY KEY,
	owner      TEXT NOT NULL,
	name       TEXT NOT NULL,
	provider   TEXT NOT NULL,
	state      TEXT NOT NULL,
	created_at INTEGER,
	UNIQUE (owner, name)
) STRICT;
