package manager

import (
	"context"

	"github.com/sandpit-dev/sandpit"
)

// Pause freezes a sandbox in memory. Its users lose their handles.
//
// NotFound: no such sandbox. Gone: it was deleted. Conflict: it does not run. Unsupported: its
// provider cannot do that.
func (m *Manager) Pause(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "pause", nil, m.lifecycle.newTransition(pausing, ""))
}

// Suspend saves a running or paused sandbox's memory to disk and frees the memory. Its users lose
// their handles. Errors as with Pause, and Exhausted: no room on disk.
func (m *Manager) Suspend(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "pause", newDiskArgs(""), m.lifecycle.newSuspend(""))
}

// Resume continues a paused or suspended sandbox. Errors as with Pause, and Exhausted: no room for
// another running sandbox.
func (m *Manager) Resume(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "resume", nil, m.lifecycle.newTransition(resuming, ""))
}

// Stop saves the files of a running or paused sandbox and ends its processes. Its users lose their
// handles. Errors as with Pause.
func (m *Manager) Stop(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "stop", nil, m.lifecycle.newStop(""))
}

// Start starts a stopped sandbox. Errors as with Pause, and Exhausted: no room for another running
// sandbox.
func (m *Manager) Start(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "start", nil, m.lifecycle.newTransition(starting, ""))
}

// Archive moves the files of a stopped sandbox to the archive. Errors as with Pause.
func (m *Manager) Archive(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "archive", nil, m.lifecycle.newTransition(archiving, ""))
}

// Restore moves the files of an archived sandbox back; it is then stopped. Errors as with Pause.
func (m *Manager) Restore(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "restore", nil, m.lifecycle.newTransition(restoring, ""))
}

// Checkpoint saves the files of a running sandbox, from which it is recreated after a crash. It is
// paused only for a moment.
//
// NotFound: no such sandbox. Gone: it was deleted. Conflict: it does not run. Unsupported: its
// provider cannot do that. Exhausted: no room on disk.
func (m *Manager) Checkpoint(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "checkpoint", nil, m.lifecycle.checkpointFiles)
}
