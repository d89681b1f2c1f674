-- The secret itself is not kept, only its SHA-256 as hexadecimal digits.
CREATE TABLE api_keys (
	id           TEXT PRIMARY KEY,
	hash         TEXT NOT NULL UNIQUE,
	name         TEXT NOT NULL,
	owner        TEXT NOT NULL,
	admin        INTEGER NOT NULL,
	created_at   INTEGER,
	expires_at   INTEGER,
	last_used_at INTEGER
) STRICT;
