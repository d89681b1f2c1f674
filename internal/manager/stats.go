package manager

import (
	"encoding/json"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Stats say what a manager is busy with. As JSON, durations are in seconds.
type Stats struct {
	// TotalSandboxes are those that exist, stopped ones included, and those that
	// wait in pools left out.
	TotalSandboxes int
	// ActiveOperations are the handles that are held and the operations under way.
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

// Stats counts.
func (m *Manager) Stats() Stats {
	s := Stats{
		ActiveOperations: m.ops.count(), MaxSandboxes: m.o.MaxSandboxes,
		IdleTimeout: m.o.IdleTimeout, CleanupInterval: m.o.Sweep, IsShuttingDown: m.closing.Load(),
	}
	for _, b := range m.boxes.all() {
		b.mu.Lock()
		if b.row.State != sandpit.StateDeleted && b.row.Pool == "" {
			s.TotalSandboxes++
		}
		s.ActiveOperations += len(b.handles)
		b.mu.Unlock()
	}
	return s
}
