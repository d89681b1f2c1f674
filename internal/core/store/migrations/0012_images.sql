-- What the provider was given in place of the image that the spec names, and whether an
-- administrator had it: both count when the sandbox is made again. Paths of the machine
-- were an administrator's before, too.
ALTER TABLE sandboxes ADD COLUMN prepared TEXT NOT NULL DEFAULT '';
ALTER TABLE sandboxes ADD COLUMN admin INTEGER NOT NULL DEFAULT 0;
UPDATE sandboxes SET admin = 1
	WHERE CASE WHEN json_valid(spec) THEN json_extract(spec, '$.image') LIKE '/%' ELSE 0 END;

-- A shared template is what its bare name means to every owner. Only administrators share
-- one. Those that were public before are shared if nobody but administrators could have
-- published them; the others are found as OWNER/NAME.
ALTER TABLE templates ADD COLUMN shared INTEGER NOT NULL DEFAULT 0;
UPDATE templates SET shared = 1
	WHERE public
	AND (owner = 'local' OR EXISTS (SELECT 1 FROM api_keys WHERE api_keys.owner = templates.owner AND admin))
	AND NOT EXISTS (SELECT 1 FROM api_keys WHERE api_keys.owner = templates.owner AND NOT admin);
