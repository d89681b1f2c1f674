package manager

import (
	"maps"
	"slices"
	"time"
)

// ProviderStatus is what a manager knows of a provider.
type ProviderStatus struct {
	Name string
	// Sandboxes is how many use quota, and MaxSandboxes how many may. Zero: no limit of its own.
	Sandboxes, MaxSandboxes int
	// Used is how long all sandboxes together have run in this calendar month, and MaxHours how many
	// hours they may. Zero: no limit.
	Used     time.Duration
	MaxHours int
	// Undeletable is how many sandboxes it has not deleted for more than ten minutes.
	Undeletable int
	// Circuit says whether requests are sent to it; if not, OpenFor is how long, and Reason why.
	Circuit CircuitState
	OpenFor time.Duration
	Reason  string
}

// ProviderStatuses returns the state of all providers, in the order of their names.
func (m *Manager) ProviderStatuses() []ProviderStatus {
	var list []ProviderStatus
	for _, name := range slices.Sorted(maps.Keys(m.o.Providers)) {
		l := m.o.ProviderLimits[name]
		s := ProviderStatus{
			Name: name, Sandboxes: m.quota.countOf(name), MaxSandboxes: l.MaxSandboxes, Used: m.quota.hours.used(name), MaxHours: l.MaxHours,
			Undeletable: m.undeletable.countOf(name),
		}
		s.Circuit, s.OpenFor, s.Reason = m.failover.circuits.status(name)
		list = append(list, s)
	}
	return list
}
