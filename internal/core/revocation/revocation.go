// Package revocation ends requests, streams and connections that an API key or a token opened
// as soon as that key or token ends.
package revocation

import (
	"context"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/clock"
)

// maxWait is the longest time between two looks at the clock. The time of day may be set,
// and timers stand still while a machine sleeps.
const maxWait = time.Minute

// Lines are contexts that depend on rights of type K. All methods may be called
// concurrently.
type Lines[K comparable] struct {
	clock clock.Clock

	mu  sync.Mutex
	all map[K]map[*line]struct{}
}

// line is one context.
type line struct {
	until time.Time // zero: as long as the right exists
	why   error     // it has expired
	end   context.CancelCauseFunc
	timer *time.Timer // nil: it does not expire
}

// New returns no lines.
func New[K comparable](c clock.Clock) *Lines[K] {
	return &Lines[K]{clock: c, all: make(map[K]map[*line]struct{})}
}

// Attach returns a context that ends with ctx, when the right is cut, and at the time
// until, unless that is zero; expired is the cause then. The caller calls release when it
// does not need the context any more.
//
// Attach does not know whether the right exists. The caller attaches first, and then makes
// sure that it does: then it misses no cut.
func (l *Lines[K]) Attach(ctx context.Context, right K, until time.Time, expired error) (attached context.Context, release func()) {
	ctx, end := context.WithCancelCause(ctx)
	one := &line{until: until, why: expired, end: end}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.all[right] == nil {
		l.all[right] = make(map[*line]struct{})
	}
	l.all[right][one] = struct{}{}
	if !until.IsZero() {
		one.timer = time.AfterFunc(l.waitUntil(until), func() { l.checkExpiry(one) })
	}
	return ctx, func() { l.releaseLine(right, one) }
}

// Cut ends all contexts of a right, with a cause.
func (l *Lines[K]) Cut(right K, why error) {
	l.mu.Lock()
	lines := l.all[right]
	delete(l.all, right)
	for one := range lines {
		one.stopTimer()
	}
	l.mu.Unlock()
	for one := range lines {
		one.end(why)
	}
}

// Len returns the number of contexts that are attached.
func (l *Lines[K]) Len() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, lines := range l.all {
		n += len(lines)
	}
	return n
}

// waitUntil returns how long to wait before the next look at the clock.
func (l *Lines[K]) waitUntil(until time.Time) time.Duration {
	return min(until.Sub(l.clock.Now()), maxWait)
}

// checkExpiry ends a context whose time has come, or waits again.
func (l *Lines[K]) checkExpiry(one *line) {
	if wait := l.waitUntil(one.until); wait > 0 {
		l.mu.Lock()
		defer l.mu.Unlock()
		if one.timer != nil {
			one.timer.Reset(wait)
		}
		return
	}
	one.end(one.why)
}

func (l *Lines[K]) releaseLine(right K, one *line) {
	l.mu.Lock()
	one.stopTimer()
	lines := l.all[right]
	delete(lines, one)
	if len(lines) == 0 {
		delete(l.all, right)
	}
	l.mu.Unlock()
	one.end(nil)
}

// stopTimer stops the timer. The lock is held.
func (o *line) stopTimer() {
	if o.timer != nil {
		o.timer.Stop()
		o.timer = nil
	}
}
