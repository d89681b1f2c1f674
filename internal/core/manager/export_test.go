package manager

import "context"

// Abandon ends the goroutines of a manager whose store is closed, without writing
// anything more.
func (m *Manager) Abandon() {
	m.closing.Store(true)
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if m.worker != nil {
		_ = m.worker.Stop(ended)
	}
	_ = m.halt(context.Background())
}

// Flush writes what waits to be written.
func (m *Manager) Flush(ctx context.Context) error {
	if err := m.flushUsed(ctx); err != nil {
		return err
	}
	return m.events.flush(ctx)
}

// Reconcile compares with the providers now.
func (m *Manager) Reconcile(ctx context.Context) { m.reconcile(ctx, false) }

// Rooms returns how many sandboxes take up room.
func (m *Manager) Rooms() int {
	m.room.mu.Lock()
	defer m.room.mu.Unlock()
	return len(m.room.claims)
}

// Tidy looks at what outlives sandboxes now.
func (m *Manager) Tidy(ctx context.Context) { m.tidy(ctx) }

// Waiting returns how many operations are under way, or wait for their turn.
func (m *Manager) Waiting() int { return m.ops.count() }
