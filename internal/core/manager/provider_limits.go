package manager

import (
	"time"

	"github.com/sandpit-dev/sandpit"
)

// ProviderLimits are the limits of one provider. The zero value of a field means the default stated
// with it.
type ProviderLimits struct {
	// MaxSandboxes is how many sandboxes the provider may have, stopped, suspended and archived ones
	// not counted. Default: Options.MaxSandboxes alone counts.
	MaxSandboxes int
	// MaxHours is how many hours all sandboxes of the provider together may run in a calendar month
	// (UTC). When they have, no other starts, and those that run are suspended, stopped or paused;
	// where none of that is possible they are deleted. Default: no limit.
	MaxHours int
	// CreateTimeout replaces Options.CreateTimeout, and CallTimeout Options.CallTimeout.
	CreateTimeout, CallTimeout time.Duration
	// Delete is Expiry.Delete of sandboxes whose policy has no AutoDelete. Default: the provider
	// decides.
	Delete time.Duration
}

// checkProviderLimits refuses limits below zero.
func (o Options) checkProviderLimits() error {
	for name, l := range o.ProviderLimits {
		if l.MaxSandboxes < 0 || l.MaxHours < 0 || l.CreateTimeout < 0 || l.CallTimeout < 0 || l.Delete < 0 {
			return sandpit.Errorf(sandpit.Invalid, "open the manager: limits of provider %q below zero", name)
		}
	}
	return nil
}

// createTimeout returns the time limit of a creation by a provider.
func (o *Options) createTimeout(provider string) time.Duration {
	if d := o.ProviderLimits[provider].CreateTimeout; d > 0 {
		return d
	}
	return o.CreateTimeout
}

// callTimeout returns the time limit of other calls of a provider.
func (o *Options) callTimeout(provider string) time.Duration {
	if d := o.ProviderLimits[provider].CallTimeout; d > 0 {
		return d
	}
	return o.CallTimeout
}

// longestCallTimeout returns the longest callTimeout of all providers.
func (o *Options) longestCallTimeout() time.Duration {
	longest := o.CallTimeout
	for name := range o.Providers {
		longest = max(longest, o.callTimeout(name))
	}
	return longest
}

// newCall returns a call of something other than a provider, with its time limit.
func (c *core) newCall(what string) providerCall {
	return providerCall{what: what, limit: c.o.CallTimeout}
}

// newCallTo returns a call of a provider with its time limit.
func (c *core) newCallTo(provider, what string) providerCall {
	return providerCall{what: what, limit: c.o.callTimeout(provider)}
}

// newExpiry returns what the provider of a sandbox does to it on its own. The server acts first; its
// provider acts when there is no server any more.
func (o *Options) newExpiry(provider string, l sandpit.Lease, p sandpit.Policy) sandpit.Expiry {
	e := sandpit.Expiry{Action: sandpit.ActionSuspend, Delete: p.AutoDelete, Archive: addMargin(p.AutoArchive)}
	if !l.Deadline.IsZero() {
		e.Deadline, e.Action = l.Deadline.Add(expiryMargin), l.Action
	}
	for _, d := range []time.Duration{p.IdleTimeout, p.AutoStop, p.AutoSuspend} {
		if d > 0 && (e.IdleStop == 0 || d < e.IdleStop) {
			e.IdleStop = d
		}
	}
	e.IdleStop = addMargin(e.IdleStop)
	if e.Delete == 0 {
		e.Delete = o.ProviderLimits[provider].Delete
	}
	e.Delete = addMargin(e.Delete)
	return e
}

// expiryMargin is how much later than the server a provider acts.
const expiryMargin = 10 * time.Minute

// addMargin adds expiryMargin to a duration that is set.
func addMargin(d time.Duration) time.Duration {
	if d <= 0 {
		return 0
	}
	return d + expiryMargin
}

// providerError is an error that a provider has caused, so that another provider may have none.
type providerError struct{ error }

// Unwrap returns the error.
func (e providerError) Unwrap() error { return e.error }

// blameProvider marks an error as caused by a provider.
func blameProvider(err error) error {
	if err == nil {
		return nil
	}
	return providerError{err}
}
