package api

import (
	"net/http"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/time/rate"
)

// maxLimited is the maximum number of names of a limiter.
const maxLimited = 10_000

// limiter allows each name a number of events per second. Its memory is limited: with too many
// names, the latest share one allowance.
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

// takeToken counts one event of a name. It returns false, and how long to wait, if there are
// too many.
func (l *limiter) takeToken(name string) (wait time.Duration, ok bool) {
	now := time.Now()
	r := l.limiterFor(name, now)
	if r.AllowN(now, 1) {
		return 0, true
	}
	return l.waitFor(r, now), false
}

// isExhausted reports whether a name has no events left, and how long to wait, without
// counting one.
func (l *limiter) isExhausted(name string) (wait time.Duration, spent bool) {
	now := time.Now()
	r := l.limiterFor(name, now)
	if r.TokensAt(now) >= 1 {
		return 0, false
	}
	return l.waitFor(r, now), true
}

// waitFor returns the time until the next event is allowed.
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

// pruneFull removes names with a full allowance. It runs at most once a second, because
// clients may bring new names all the time.
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

// addressName returns the name under which an address is counted: an IPv6 address counts as
// its /64, which usually belongs to one client.
func addressName(a netip.Addr) string {
	a = a.Unmap().WithZone("")
	if a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}

// Attempts limits failed attempts by address. All methods may be called concurrently.
type Attempts struct{ failed *limiter }

// NewAttempts allows each address a number of failures per minute, and a burst.
func NewAttempts(minute float64, burst int) *Attempts {
	return &Attempts{newLimiter(rate.Limit(minute/60), burst)}
}

// Fail counts a failure. It returns false if there were too many.
func (a *Attempts) Fail(from netip.Addr) bool {
	_, ok := a.failed.takeToken(addressName(from))
	return ok
}

// Spent reports whether an address has failed too often to try again now.
func (a *Attempts) Spent(from netip.Addr) bool {
	_, spent := a.failed.isExhausted(addressName(from))
	return spent
}

// ClientName returns the name under which the client of a request without a principal is counted: its
// address, of IPv6 its /64, which usually belongs to one client.
func ClientName(r *http.Request) string {
	if e, served := r.Context().Value(servingEdgeKey{}).(*Edge); served {
		return e.o.clientOf(r).actorName()
	}
	return peerOf(r).actorName()
}

// AddressActor returns the actor in the audit trail for a client of which only the address is
// known. No owner has such a name.
func AddressActor(a netip.Addr) string { return peer{client: a}.actorName() }
