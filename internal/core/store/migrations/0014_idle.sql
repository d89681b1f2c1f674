-- Whether a sandbox is paused or stopped because it was idle: then its next use resumes it.
ALTER TABLE sandboxes ADD COLUMN idled INTEGER NOT NULL DEFAULT 0;
