package manager

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// The bounds of circuits.
const (
	circuitFailures   = 3                // creations that fail one after another until a circuit opens
	circuitPause      = 10 * time.Second // how long it is open then; doubles
	circuitPauseLimit = 5 * time.Minute
	retryAfterLimit   = time.Hour // of what a provider may demand

	retryTokens = 10              // repeated requests to one provider in a row
	retryRefill = 6 * time.Second // until there is another token
	retryWait   = 10 * time.Second
	retryRounds = 2 // how often a request is repeated
)

// CircuitState says whether requests are sent to a provider.
type CircuitState string

// The states of a circuit.
const (
	// CircuitClosed lets all requests through.
	CircuitClosed CircuitState = "closed"
	// CircuitOpen passes requests on to other providers.
	CircuitOpen CircuitState = "open"
	// CircuitHalfOpen lets one request through, whose result decides.
	CircuitHalfOpen CircuitState = "half-open"
)

// circuits decide to which providers requests for sandboxes are sent, from how earlier ones ended.
// All methods may be called concurrently.
type circuits struct {
	now    func() time.Time // default: time.Now
	mu     sync.Mutex
	byName map[string]*circuit
}

// circuit is that of one provider.
type circuit struct {
	failures  int
	lastErr   string
	openUntil time.Time
	demanded  time.Time // until then the provider itself wants no requests
	trial     bool      // a request that decides is under way

	tokens     float64 // for repeated requests
	refilledAt time.Time
}

func newCircuits() *circuits {
	return &circuits{now: time.Now, byName: make(map[string]*circuit)}
}

// get returns the circuit of a provider. The lock is held.
func (cs *circuits) get(name string) *circuit {
	c := cs.byName[name]
	if c == nil {
		c = &circuit{tokens: retryTokens, refilledAt: cs.now()}
		cs.byName[name] = c
	}
	return c
}

// state returns the state at a time. The lock is held.
func (c *circuit) state(now time.Time) CircuitState {
	switch {
	case now.Before(c.demanded) || c.failures >= circuitFailures && now.Before(c.openUntil):
		return CircuitOpen
	case c.failures >= circuitFailures:
		return CircuitHalfOpen
	default:
		return CircuitClosed
	}
}

// admit reports whether a request may be sent to a provider, and whether it is the one that decides in
// a half-open circuit; record must follow then. With forced, only the provider's own demand prevents
// the request.
//
// Unavailable: the circuit is open.
func (cs *circuits) admit(name string, forced bool) (trial bool, err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c, now := cs.get(name), cs.now()
	state, until := c.state(now), c.openUntil
	if now.Before(c.demanded) {
		until, forced = c.demanded, false
	}
	switch {
	case state == CircuitClosed || forced:
		return false, nil
	case state == CircuitHalfOpen && !c.trial:
		c.trial = true
		return true, nil
	}
	wait := max(roundUp(until.Sub(now)), time.Second)
	return false, sandpit.WithRetry(sandpit.Errorf(sandpit.Unavailable, "provider %s gets no requests for %v: %s", name, wait, c.lastErr), wait)
}

// roundUp returns a duration in whole seconds, not shorter: a client that waits that long is not too
// early.
func roundUp(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

// record records how a request to a provider has ended; trial is what admit returned. An error that
// the provider did not cause changes nothing.
func (cs *circuits) record(name string, trial bool, err error) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c, now := cs.get(name), cs.now()
	if trial {
		c.trial = false
	}
	if err == nil {
		c.failures = 0 // what the provider demands stays: this request began earlier
		return
	}
	if !isProviderError(err) {
		return
	}
	if after := min(sandpit.RetryAfterOf(err), retryAfterLimit); after > 0 {
		c.lastErr = err.Error()
		if until := now.Add(after); until.After(c.demanded) {
			c.demanded = until
		}
	}
	switch sandpit.CodeOf(err) {
	case sandpit.Unavailable, sandpit.Timeout, sandpit.Internal, sandpit.Unauthenticated:
		c.lastErr = err.Error()
		c.failures++
		if extra := c.failures - circuitFailures; extra >= 0 {
			pause := min(circuitPause<<min(extra, 10), circuitPauseLimit)
			c.openUntil = now.Add(pause - rand.N(pause/5+1)) //nolint:gosec // so that servers do not return together
		}
	default: // it answers
		c.failures = 0
	}
}

// takeRetry takes a token for a repeated request to a provider, and reports false if it has none.
func (cs *circuits) takeRetry(name string) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c, now := cs.get(name), cs.now()
	c.tokens = min(c.tokens+float64(now.Sub(c.refilledAt))/float64(retryRefill), retryTokens)
	c.refilledAt = now
	if c.tokens < 1 {
		return false
	}
	c.tokens--
	return true
}

// status returns the state of a provider's circuit, how long it stays open, and why.
func (cs *circuits) status(name string) (state CircuitState, left time.Duration, reason string) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	c, now := cs.get(name), cs.now()
	state = c.state(now)
	if state == CircuitClosed {
		return state, 0, ""
	}
	until := c.openUntil
	if c.demanded.After(now) {
		until = c.demanded
	}
	return state, max(until.Sub(now), 0), c.lastErr
}
