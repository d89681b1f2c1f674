-- Sandboxes that are paused on disk, or whose files are saved while they run. Durations are
-- nanoseconds.
ALTER TABLE sandboxes ADD COLUMN suspended INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN checkpointed_at INTEGER;
ALTER TABLE sandboxes ADD COLUMN auto_suspend INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN wake_on_use INTEGER NOT NULL DEFAULT 0;
ALTER TABLE sandboxes ADD COLUMN checkpoint_every INTEGER NOT NULL DEFAULT 0;
