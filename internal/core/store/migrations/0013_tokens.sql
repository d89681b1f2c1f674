-- Tokens that open something of a sandbox without an API key. Their secrets are not here:
-- they are derived from the ID, the kind, the sandbox, the port and the epochs with a key
-- that is in another file. api_key is the ID of the key that asked for the token, '' for a
-- caller that needs none. epoch is that of the sandbox, port_epoch that of the preview.
CREATE TABLE tokens (
	id           TEXT PRIMARY KEY,
	kind         TEXT NOT NULL CHECK (kind IN ('guest', 'traffic', 'preview')),
	sandbox      TEXT NOT NULL,
	port         INTEGER NOT NULL,
	owner        TEXT NOT NULL,
	creator      TEXT NOT NULL,
	api_key      TEXT NOT NULL,
	epoch        INTEGER NOT NULL,
	port_epoch   INTEGER NOT NULL,
	legacy       INTEGER NOT NULL,
	note         TEXT NOT NULL,
	created_at   INTEGER,
	expires_at   INTEGER,
	last_used_at INTEGER
) STRICT;

CREATE INDEX tokens_owner ON tokens (owner, id);
CREATE INDEX tokens_sandbox ON tokens (sandbox, kind, port);
CREATE INDEX tokens_key ON tokens (api_key) WHERE api_key <> '';
-- Whoever asks again gets the same access tokens.
CREATE UNIQUE INDEX tokens_access ON tokens (sandbox, kind, port, api_key) WHERE kind <> 'preview' AND legacy = 0;

-- How often all tokens of a sandbox were revoked.
ALTER TABLE sandboxes ADD COLUMN token_epoch INTEGER NOT NULL DEFAULT 0;

-- The API key by which an SSH key was registered, with which it ends; '' for none.
ALTER TABLE ssh_keys ADD COLUMN api_key TEXT NOT NULL DEFAULT '';

CREATE TRIGGER tokens_end AFTER DELETE ON sandboxes
BEGIN DELETE FROM tokens WHERE sandbox = OLD.id; END;

CREATE TRIGGER keys_end AFTER DELETE ON api_keys
BEGIN
	DELETE FROM tokens WHERE api_key = OLD.id;
	DELETE FROM ssh_keys WHERE api_key = OLD.id;
END;

-- Earlier versions gave out access tokens without a record. Those of the sandboxes of E2B's
-- API are honored for a day, so that programs survive the upgrade.
INSERT INTO tokens
SELECT lower(hex(randomblob(10))), kinds.value, s.id, iif(kinds.value = 'guest', 49983, 0), s.owner, s.owner, '', 0, 0, 1,
	'given out before the upgrade', unixepoch() * 1000000, (unixepoch() + 86400) * 1000000, NULL
FROM sandboxes s, json_each('["guest", "traffic"]') kinds
WHERE s.state NOT IN ('deleting', 'deleted') AND s.pool = '' AND s.spec LIKE '%"sandpit.e2b":%';
