package manager

import (
	"context"

	"github.com/sandpit-dev/sandpit"
)

// Pause holds a sandbox still, its memory kept. Who uses it is told to stop.
//
// NotFound: no such sandbox. Gone: it was deleted. Conflict: it does not run.
// Unsupported: its provider cannot do that.
func (m *Manager) Pause(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "pause", nil, m.lifecycle.newTransition(pausing, ""))
}

// Suspend pauses a sandbox on disk, which gives its room back; one that is paused in
// memory may be suspended, too. Who uses it is told to stop. Errors as with Pause, and
// Exhausted: no room on disk.
func (m *Manager) Suspend(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "pause", newDiskArgs(""), m.lifecycle.newSuspend(""))
}

// Resume lets a paused sandbox go on, wherever its memory is. Errors as with
// Pause, and Exhausted: there is no room for one more that runs.
func (m *Manager) Resume(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "resume", nil, m.lifecycle.newTransition(resuming, ""))
}

// Stop ends the processes of a running or paused sandbox, its files kept. Who
// uses it is told to stop. Errors as with Pause.
func (m *Manager) Stop(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "stop", nil, m.lifecycle.newStop(""))
}

// Start starts a stopped sandbox. Errors as with Pause, and Exhausted: there is
// no room for one more that runs.
func (m *Manager) Start(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "start", nil, m.lifecycle.newTransition(starting, ""))
}

// Archive moves the files of a stopped sandbox to where they cost little. Errors
// as with Pause.
func (m *Manager) Archive(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "archive", nil, m.lifecycle.newTransition(archiving, ""))
}

// Restore moves the files of an archived sandbox back; it is stopped then. Errors
// as with Pause.
func (m *Manager) Restore(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "restore", nil, m.lifecycle.newTransition(restoring, ""))
}

// Checkpoint saves the files of a running sandbox, which it begins with if it is made
// again after a crash. It goes on meanwhile, but for a moment.
//
// NotFound: no such sandbox. Gone: it was deleted. Conflict: it does not run.
// Unsupported: its provider cannot do that. Exhausted: no room on disk.
func (m *Manager) Checkpoint(ctx context.Context, id sandpit.ID) error {
	return m.core.runOperation(ctx, id, "checkpoint", nil, m.lifecycle.checkpointFiles)
}
