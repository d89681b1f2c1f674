package api

import "github.com/sandpit-dev/sandpit"

// Pool is the state of a pool.
type Pool struct {
	Provider string       `json:"provider"`
	Spec     sandpit.Spec `json:"spec"`
	Size     int          `json:"size" doc:"Minimum number of spares."`
	Max      int          `json:"max" doc:"Maximum number of spares, if the pool adapts to demand."`
	Ready    int          `json:"ready"`
	Making   int          `json:"making"`
}

// Provider is the state of a provider.
type Provider struct {
	Name      string   `json:"name"`
	Default   bool     `json:"default,omitempty" doc:"Requests that name no provider use this one."`
	Available bool     `json:"available"`
	Abilities []string `json:"abilities,omitempty" doc:"What the provider can do besides creating sandboxes."`
	Reason    string   `json:"reason,omitempty" doc:"Why the provider is not available."`
	Endpoint  string   `json:"endpoint,omitempty" doc:"Where the server looked for the provider; for administrators."`
	Hint      string   `json:"hint,omitempty" doc:"What to do about it; for administrators."`

	Order           int               `json:"order,omitempty" doc:"The place among the providers of requests that name none, from 1. The next one creates the sandbox if one cannot."`
	Missing         map[string]string `json:"missing,omitempty" doc:"What the provider cannot do, and why."`
	Circuit         string            `json:"circuit,omitempty" enum:"closed,open,half-open" doc:"Open: requests are passed on to other providers because of earlier failures. Half-open: the next request decides."`
	CircuitReason   string            `json:"circuit_reason,omitempty" doc:"The last failure, unless the circuit is closed; for administrators."`
	CircuitSeconds  float64           `json:"circuit_seconds,omitempty" doc:"Seconds until an open circuit is half-open."`
	Sandboxes       int               `json:"sandboxes,omitempty" doc:"Sandboxes that count against max_sandboxes; for administrators."`
	MaxSandboxes    int               `json:"max_sandboxes,omitempty" doc:"How many there may be. 0: no limit of its own."`
	SandboxHours    float64           `json:"sandbox_hours,omitempty" doc:"Hours that all sandboxes together have run in this calendar month; for administrators."`
	MaxSandboxHours int               `json:"max_sandbox_hours,omitempty" doc:"How many hours they may run. 0: no limit."`
	Undeletable     int               `json:"undeletable,omitempty" doc:"Sandboxes that could not be deleted for more than ten minutes; for administrators."`
	Account         *sandpit.Account  `json:"account,omitempty" doc:"What the provider says about the account; for administrators. max_lifetime is in nanoseconds."`
}

// Stats are the counters of the server. The keys are those of the manager.
type Stats struct {
	TotalSandboxes   int     `json:"total_sandboxes"`
	ActiveOperations int     `json:"active_operations"`
	MaxSandboxes     int     `json:"max_sandboxes"`
	IdleTimeout      float64 `json:"idle_timeout" doc:"Seconds."`
	CleanupInterval  float64 `json:"cleanup_interval" doc:"Seconds."`
	IsShuttingDown   bool    `json:"is_shutting_down"`
}

// Version has the versions of the server and its parts.
type Version struct {
	Sandpit string `json:"sandpit"`
	GVisor  string `json:"gvisor,omitempty"`
	Guest   string `json:"guest,omitempty"`
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
	URL     string `json:"url,omitempty" doc:"The address at which the server listens, from its machine; for administrators."`
}
