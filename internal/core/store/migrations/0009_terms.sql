-- How long before its deadline that was set, in nanoseconds; 0 for none. A sandbox that goes on
-- after its deadline has as long again.
ALTER TABLE sandboxes ADD COLUMN term INTEGER NOT NULL DEFAULT 0;
