package api

import (
	"time"

	"golang.org/x/time/rate"
)

// MaxLimited is how many names a limiter tells apart.
const MaxLimited = maxLimited

// Limiter is a limiter for tests.
type Limiter struct{ l *limiter }

// NewLimiter makes one.
func NewLimiter(limit rate.Limit, burst int) Limiter { return Limiter{newLimiter(limit, burst)} }

// Allow takes an event.
func (l Limiter) Allow(name string) (time.Duration, bool) { return l.l.takeToken(name) }

// Spent looks.
func (l Limiter) Spent(name string) (time.Duration, bool) { return l.l.isExhausted(name) }

// Size is how many names are known.
func (l Limiter) Size() int {
	l.l.mu.Lock()
	defer l.l.mu.Unlock()
	return len(l.l.names)
}
