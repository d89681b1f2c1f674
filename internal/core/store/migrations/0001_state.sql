CREATE TABLE identity (
	id   INTEGER PRIMARY KEY CHECK (id = 1),
	name TEXT NOT NULL
) STRICT;

-- Times are microseconds since 1970, NULL for none.
CREATE TABLE sandboxes (
	id             TEXT PRIMARY KEY,
	owner          TEXT NOT NULL,
	provider       TEXT NOT NULL,
	state          TEXT NOT NULL,
	reason         TEXT NOT NULL,
	spec           TEXT NOT NULL,
	deadline       INTEGER,
	action         TEXT NOT NULL,
	handle         BLOB,
	request_key    TEXT NOT NULL,
	request_digest TEXT NOT NULL,
	pool           TEXT NOT NULL,
	recreated      INTEGER NOT NULL,
	created_at     INTEGER,
	last_used_at   INTEGER,
	changed_at     INTEGER,
	version        INTEGER NOT NULL,
	-- The policy; durations are nanoseconds. As columns, since JSON takes longest when all are listed.
	idle_timeout      INTEGER NOT NULL,
	idle_action       TEXT NOT NULL,
	auto_stop         INTEGER NOT NULL,
	auto_archive      INTEGER NOT NULL,
	auto_delete       INTEGER NOT NULL,
	recreate          INTEGER NOT NULL,
	ignore_background INTEGER NOT NULL
) STRICT;

CREATE INDEX sandboxes_owner ON sandboxes (owner, id);
CREATE INDEX sandboxes_state ON sandboxes (state, id);
CREATE UNIQUE INDEX sandboxes_request ON sandboxes (owner, request_key) WHERE request_key <> '';

CREATE TABLE events (
	seq      INTEGER PRIMARY KEY,
	at       INTEGER,
	actor    TEXT NOT NULL,
	action   TEXT NOT NULL,
	sandbox  TEXT NOT NULL,
	args     TEXT NOT NULL,
	result   TEXT NOT NULL,
	message  TEXT NOT NULL,
	duration INTEGER NOT NULL,
	hash     TEXT NOT NULL
) STRICT;

CREATE INDEX events_at ON events (at);
CREATE INDEX events_sandbox ON events (sandbox, seq);

-- The chain goes from the event after start_seq to end_seq. start_hash is what
-- the first one follows, end_hash is of the last one.
CREATE TABLE event_chain (
	id         INTEGER PRIMARY KEY CHECK (id = 1),
	start_seq  INTEGER NOT NULL,
	start_hash TEXT NOT NULL,
	end_seq    INTEGER NOT NULL,
	end_hash   TEXT NOT NULL
) STRICT;
INSERT INTO event_chain VALUES (1, 0, '', 0, '');

CREATE TRIGGER events_in_order BEFORE INSERT ON events
WHEN NEW.seq <> 1 + max((SELECT end_seq FROM event_chain), ifnull((SELECT max(seq) FROM events), 0))
BEGIN SELECT RAISE(ABORT, 'events are only appended'); END;

CREATE TRIGGER events_stay BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events do not change'); END;

-- Those before the start of the chain were pruned.
CREATE TRIGGER events_last BEFORE DELETE ON events
WHEN OLD.seq > (SELECT start_seq FROM event_chain)
BEGIN SELECT RAISE(ABORT, 'events are not deleted'); END;

-- Times are milliseconds since 1970. until and token are for claimed ones.
CREATE TABLE messages (
	id         TEXT PRIMARY KEY,
	topic      TEXT NOT NULL,
	sandbox    TEXT NOT NULL,
	kind       TEXT NOT NULL,
	metadata   TEXT NOT NULL,
	due        INTEGER NOT NULL,
	attempts   INTEGER NOT NULL,
	last_error TEXT NOT NULL,
	created_at INTEGER NOT NULL,
	state      TEXT NOT NULL CHECK (state IN ('pending', 'claimed', 'dead')),
	token      TEXT NOT NULL,
	until      INTEGER NOT NULL
) STRICT;

CREATE UNIQUE INDEX messages_pending ON messages (sandbox, kind) WHERE state = 'pending';
CREATE UNIQUE INDEX messages_claimed ON messages (sandbox, kind) WHERE state = 'claimed';
CREATE INDEX messages_dead ON messages (topic, id) WHERE state = 'dead';
CREATE INDEX messages_due ON messages (topic, due) WHERE state = 'pending';
CREATE INDEX messages_until ON messages (topic, until) WHERE state = 'claimed';
