package manager

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Abandon ends the goroutines of a manager whose store is closed, without writing
// anything more.
func (m *Manager) Abandon() {
	m.core.closing.Store(true)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if m.messages.worker != nil {
		_ = m.messages.worker.Stop(ended)
	}
	_ = m.stopTasks(context.Background())
}

// Flush writes what waits to be written.
func (m *Manager) Flush(ctx context.Context) error {
	if err := m.records.flushUses(ctx); err != nil {
		return err
	}
	return m.events.queue.flush(ctx)
}

// Reconcile compares with the providers now.
func (m *Manager) Reconcile(ctx context.Context) { m.reconciler.reconcileProviders(ctx, false) }

// Rooms returns how many sandboxes take up room.
func (m *Manager) Rooms() int {
	m.quota.mu.Lock()
	defer m.quota.mu.Unlock()
	return len(m.quota.claims)
}

// Tidy looks at what outlives sandboxes now.
func (m *Manager) Tidy(ctx context.Context) { m.reconciler.removeLeftovers(ctx) }

// Waiting returns how many operations are under way, or wait for their turn.
func (m *Manager) Waiting() int { return m.core.ops.count() }

// CheckVolumes starts a pass over the volumes that running sandboxes can write.
func (m *Manager) CheckVolumes(ctx context.Context) { m.volumeMeter.checkWriters(ctx) }

// VolumePassEvery is the time between the manager's own passes over volumes.
const VolumePassEvery = volumePassEvery

// ChecksVolumes reports whether a pass over an owner's volumes is under way.
func (m *Manager) ChecksVolumes(owner string) bool {
	m.volumeMeter.mu.Lock()
	defer m.volumeMeter.mu.Unlock()
	return m.volumeMeter.passes[owner].running
}

// EnforceHours ends the sandboxes of providers that have used their hours.
func (m *Manager) EnforceHours(ctx context.Context) { m.hours.enforceLimits(ctx) }

// ForgetConfirmation makes the next use of a sandbox ask its provider whether it runs.
func (m *Manager) ForgetConfirmation(id sandpit.ID) error {
	rec, err := m.sandboxes.find(id)
	if err != nil {
		return err
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.confirmedAt = time.Time{}
	return nil
}
