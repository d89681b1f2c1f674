package manager

import (
	"encoding/json"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Stats are counts of what a manager manages. In JSON, durations are in seconds.
type Stats struct {
	// TotalSandboxes counts existing sandboxes, also stopped ones, but no spares.
	TotalSandboxes int
	// ActiveOperations counts handles and running operations.
	ActiveOperations int
	MaxSandboxes     int
	IdleTimeout      time.Duration
	CleanupInterval  time.Duration
	IsShuttingDown   bool
}

// MarshalJSON implements json.Marshaler.
func (s Stats) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Total    int     `json:"total_sandboxes"`
		Active   int     `json:"active_operations"`
		Max      int     `json:"max_sandboxes"`
		Idle     float64 `json:"idle_timeout"`
		Interval float64 `json:"cleanup_interval"`
		Down     bool    `json:"is_shutting_down"`
	}{
		s.TotalSandboxes, s.ActiveOperations, s.MaxSandboxes,
		s.IdleTimeout.Seconds(), s.CleanupInterval.Seconds(), s.IsShuttingDown,
	})
}

// Stats counts the sandboxes and operations of all owners.
func (m *Manager) Stats() Stats {
	s := m.countStats(func(store.Row) bool { return true })
	s.ActiveOperations += m.core.ops.count()
	return s
}

// StatsOf is Stats for one owner's sandboxes and their use.
func (m *Manager) StatsOf(owner string) Stats {
	return m.countStats(func(r store.Row) bool { return r.Lease.Owner == owner })
}

func (m *Manager) countStats(counts func(store.Row) bool) Stats {
	s := Stats{
		MaxSandboxes: m.o.MaxSandboxes,
		IdleTimeout:  m.o.IdleTimeout, CleanupInterval: m.o.Sweep, IsShuttingDown: m.core.closing.Load(),
	}
	for _, rec := range m.sandboxes.all() {
		rec.mu.Lock()
		if counts(rec.row) {
			if rec.row.State != sandpit.StateDeleted && rec.row.Pool == "" {
				s.TotalSandboxes++
			}
			s.ActiveOperations += len(rec.handles)
		}
		rec.mu.Unlock()
	}
	return s
}

// CountStates counts sandboxes by their state, without spares and deleted ones.
func (m *Manager) CountStates() map[sandpit.State]int {
	counts := make(map[sandpit.State]int)
	for _, rec := range m.sandboxes.all() {
		rec.mu.Lock()
		if rec.row.State != sandpit.StateDeleted && rec.row.Pool == "" {
			counts[rec.row.State]++
		}
		rec.mu.Unlock()
	}
	return counts
}
