package sandpit

import (
	"context"
	"errors"
	"time"
)

// Expiry is what a provider outside of this machine does to a sandbox on its own, so that one
// that no server knows any more does not run, and cost, for ever.
type Expiry struct {
	// Deadline is when Action happens. The zero time means the provider's longest.
	Deadline time.Time
	// Action is what happens at the deadline. Default: ActionKill.
	Action Action
	// IdleStop is the time without use until the sandbox is stopped, Archive the time stopped
	// until it is archived, and Delete the time stopped until it is deleted. Zero: the
	// provider's default.
	IdleStop, Archive, Delete time.Duration
}

// ErrDeadlineTooLate is in the chain of an Invalid error of Provider.Create and Renewer.Renew about a
// deadline that is later than the provider allows.
var ErrDeadlineTooLate = errors.New("the deadline is later than the provider allows")

// Renewer is an optional ability of an Instance whose provider ends sandboxes on its own. The
// manager calls it when the deadline or policy of a sandbox changes, and while it is in use.
type Renewer interface {
	// Renew replaces the expiry. Gone: the sandbox has ended. Invalid with ErrDeadlineTooLate:
	// later than the provider allows.
	Renew(ctx context.Context, e Expiry) error
}

// StateReader is an optional ability of an Instance whose state can change without a request
// to it.
type StateReader interface {
	// ReadState returns the state that the provider has of the sandbox: StateRunning,
	// StateStopped, StatePaused or StateArchived. NotFound: there is no such sandbox.
	ReadState(ctx context.Context) (State, error)
}

// AccountReader is an optional ability of a Provider that belongs to an account.
type AccountReader interface {
	// ReadAccount asks the provider. Unauthenticated: the key is not valid. Unavailable: the
	// provider cannot be reached.
	ReadAccount(ctx context.Context) (Account, error)
}

// Account is what a provider allows.
type Account struct {
	// Endpoint is the URL of the provider's API.
	Endpoint string `json:"endpoint"`
	// Name describes the account for people, without a secret. Default: unknown.
	Name string `json:"name,omitempty"`
	// Sandboxes is how many exist that belong to this server; MaxSandboxes is how many may.
	// Zero: unknown.
	Sandboxes    int `json:"sandboxes,omitempty"`
	MaxSandboxes int `json:"max_sandboxes,omitempty"`
	// MaxLifetime is the longest time until a deadline. Zero: unknown.
	MaxLifetime time.Duration `json:"max_lifetime,omitempty"`
	// Abilities are the names of what sandboxes of the account can do, such as "pause",
	// "snapshot" and "volumes"; Missing has a reason for each that they cannot do.
	Abilities []string          `json:"abilities"`
	Missing   map[string]string `json:"missing,omitempty"`
}
