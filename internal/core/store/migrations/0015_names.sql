-- The name of a sandbox, which no other sandbox of its owner has. It is '' for sandboxes that
-- have none, wait in a pool or are deleted: those keep no name from anyone.
ALTER TABLE sandboxes ADD COLUMN name TEXT NOT NULL DEFAULT '';
CREATE UNIQUE INDEX sandboxes_name ON sandboxes (owner, name) WHERE name <> '';

-- Earlier versions allowed a name more than once. The oldest sandbox keeps it, the second one
-- becomes NAME-2, and so on. If that is taken as well it becomes NAME-ID, and if even that is
-- taken it loses its name.
CREATE TEMPORARY TABLE old_names AS
SELECT id, owner, name, row_number() OVER (PARTITION BY owner, name ORDER BY ifnull(created_at, 0), id) AS place, bytes
FROM (
	SELECT id, owner, created_at, octet_length(spec) AS bytes,
		CASE WHEN json_valid(spec) THEN iif(json_type(spec, '$.name') = 'text', json_extract(spec, '$.name'), '') ELSE '' END AS name
	FROM sandboxes
	WHERE pool = '' AND state NOT IN ('deleting', 'deleted')
)
WHERE name <> '';

UPDATE sandboxes SET name = old.name
FROM old_names AS old WHERE old.id = sandboxes.id AND old.place = 1;

-- A spec near its limit of 1 MiB must not become longer.
UPDATE OR IGNORE sandboxes SET name = old.name || '-' || old.place
FROM old_names AS old WHERE old.id = sandboxes.id AND sandboxes.name = '' AND old.bytes < 1000000;

UPDATE OR IGNORE sandboxes SET name = old.name || '-' || old.id
FROM old_names AS old WHERE old.id = sandboxes.id AND sandboxes.name = '' AND old.bytes < 1000000;

UPDATE sandboxes SET spec = iif(name = '', json_remove(spec, '$.name'), json_set(spec, '$.name', name))
WHERE id IN (SELECT id FROM old_names WHERE place > 1);

DROP TABLE old_names;
