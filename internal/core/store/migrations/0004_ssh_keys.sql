-- Public keys. Several owners may have the same one.
CREATE TABLE ssh_keys (
	id           TEXT PRIMARY KEY,
	owner        TEXT NOT NULL,
	fingerprint  TEXT NOT NULL,
	type         TEXT NOT NULL,
	name         TEXT NOT NULL,
	created_at   INTEGER,
	last_used_at INTEGER
) STRICT;

CREATE UNIQUE INDEX ssh_keys_owner ON ssh_keys (owner, fingerprint);
