-- The state is creating, ready or deleting; one that is brief is removed by whoever made
-- it, or by whoever opens the store next. The provider knows a snapshot by its ID.
CREATE TABLE snapshots (
	id         TEXT PRIMARY KEY,
	owner      TEXT NOT NULL,
	name       TEXT, -- NULL: none
	sandbox    TEXT NOT NULL,
	provider   TEXT NOT NULL,
	state      TEXT NOT NULL,
	brief      INTEGER NOT NULL,
	size       INTEGER NOT NULL,
	memory     INTEGER NOT NULL,
	spec       TEXT NOT NULL,
	problem    TEXT NOT NULL,
	created_at INTEGER,
	UNIQUE (owner, name)
) STRICT;
