-- owner is the owner whom an event concerns: the owner of the sandbox, or the actor where an
-- action was refused or is about no sandbox.
DROP TRIGGER events_stay;
ALTER TABLE events ADD COLUMN owner TEXT NOT NULL DEFAULT '';
UPDATE events SET owner = ifnull((SELECT owner FROM sandboxes WHERE id = events.sandbox), actor);
CREATE TRIGGER events_stay BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'events do not change'); END;
CREATE INDEX events_owner ON events (owner, seq);
CREATE INDEX events_actor ON events (actor, seq);

-- bytes is the size of all events: of their texts, and 100 for the rest of each.
ALTER TABLE event_chain ADD COLUMN bytes INTEGER NOT NULL DEFAULT 0;
UPDATE event_chain SET bytes = (SELECT ifnull(sum(100 + octet_length(actor) + octet_length(action) + octet_length(sandbox)
	+ octet_length(args) + octet_length(result) + octet_length(message) + octet_length(owner)), 0) FROM events);
