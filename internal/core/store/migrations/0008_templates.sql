-- A build's status is waiting, building, ready or failed; what was building when the
-- server ended has failed. The recipe, tags and resources are JSON, and so is the log,
-- which is written when the build ends.
CREATE TABLE templates (
	id         TEXT PRIMARY KEY,
	owner      TEXT NOT NULL,
	name       TEXT NOT NULL,
	public     INTEGER NOT NULL,
	spawned    INTEGER NOT NULL,
	created_at INTEGER,
	updated_at INTEGER,
	UNIQUE (owner, name)
) STRICT;

-- One whose template is gone is removed when no sandbox needs it any more.
CREATE TABLE template_builds (
	id          TEXT PRIMARY KEY,
	template    TEXT NOT NULL,
	owner       TEXT NOT NULL,
	status      TEXT NOT NULL,
	tags        TEXT NOT NULL,
	message     TEXT NOT NULL,
	step        TEXT NOT NULL,
	recipe      TEXT NOT NULL,
	image       TEXT NOT NULL,
	snapshot    TEXT NOT NULL,
	size        INTEGER NOT NULL,
	resources   TEXT NOT NULL,
	created_at  INTEGER,
	started_at  INTEGER,
	finished_at INTEGER
) STRICT;
CREATE INDEX template_builds_template ON template_builds (template);

CREATE TABLE template_tags (
	template TEXT NOT NULL,
	tag      TEXT NOT NULL,
	build    TEXT NOT NULL,
	PRIMARY KEY (template, tag)
) STRICT, WITHOUT ROWID;

CREATE TABLE template_logs (
	build   TEXT PRIMARY KEY,
	entries TEXT NOT NULL
) STRICT;

-- Snapshots of builds are none of their owners' own.
ALTER TABLE snapshots ADD COLUMN build TEXT NOT NULL DEFAULT '';
