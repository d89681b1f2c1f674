package api

import (
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxLimited is how many names a limiter tells apart.
const maxLimited = 10_000

// limiter allows each name so many events a second. It is bounded: when there are
// too many names, those that come last share one allowance.
type limiter struct {
	limit rate.Limit
	burst int

	mu     sync.Mutex
	names  map[string]*rate.Limiter
	rest   *rate.Limiter
	pruned time.Time
}

func newLimiter(limit rate.Limit, burst int) *limiter {
	return &limiter{limit: limit, burst: burst, names: make(map[string]*rate.Limiter), rest: rate.NewLimiter(limit, burst)}
}

// takeToken takes one event of a name. If it is too many it says how long to wait.
func (l *limiter) takeToken(name string) (wait time.Duration, ok bool) {
	now := time.Now()
	r := l.limiterFor(name, now)
	if r.AllowN(now, 1) {
		return 0, true
	}
	return l.waitFor(r, now), false
}

// isExhausted reports whether a name has no more events, and how long to wait, without
// taking one.
func (l *limiter) isExhausted(name string) (wait time.Duration, spent bool) {
	now := time.Now()
	r := l.limiterFor(name, now)
	if r.TokensAt(now) >= 1 {
		return 0, false
	}
	return l.waitFor(r, now), true
}

// waitFor is how long until there is one more.
func (l *limiter) waitFor(r *rate.Limiter, now time.Time) time.Duration {
	return time.Duration((1 - r.TokensAt(now)) / float64(l.limit) * float64(time.Second))
}

func (l *limiter) limiterFor(name string, now time.Time) *rate.Limiter {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.names[name]
	if a == nil {
		if len(l.names) >= maxLimited {
			l.pruneFull(now)
		}
		if len(l.names) >= maxLimited {
			return l.rest
		}
		a = rate.NewLimiter(l.limit, l.burst)
		l.names[name] = a
	}
	return a
}

// pruneFull forgets those whose allowance is whole again. It looks at most once a
// second, since somebody may bring new names all the time.
func (l *limiter) pruneFull(now time.Time) {
	if now.Sub(l.pruned) < time.Second {
		return
	}
	l.pruned = now
	for name, a := range l.names {
		if a.TokensAt(now) >= float64(l.burst) {
			delete(l.names, name)
		}
	}
}

// addressName is what an address counts as: one of version 6 as its network, since
// whoever has one has all of it.
func addressName(a netip.Addr) string {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}

// Attempts counts what addresses try and fail at, so that none of them goes on for ever.
// All methods may be called concurrently.
type Attempts struct{ failed *limiter }

// NewAttempts allows each address so many failures a minute, and burst at once.
func NewAttempts(minute float64, burst int) *Attempts {
	return &Attempts{newLimiter(rate.Limit(minute/60), burst)}
}

// Fail counts a failure, and reports whether it was one of those that are allowed.
func (a *Attempts) Fail(from netip.Addr) bool {
	_, ok := a.failed.takeToken(addressName(from))
	return ok
}

// Spent reports whether an address has failed too often, and is not to try again yet.
func (a *Attempts) Spent(from netip.Addr) bool {
	_, spent := a.failed.isExhausted(addressName(from))
	return spent
}

// AddressActor is what somebody is called in the trail of events of whom nothing but the
// address is known. No owner has such a name.
func AddressActor(a netip.Addr) string { return peer{client: a}.actorName() }
