// Package clock provides the time of day. That time jumps when a person or a machine that
// resumes sets it, and code that acts on it must be testable against such a jump.
package clock

import (
	"sync/atomic"
	"time"
)

// Clock provides the time of day and timers. It may be used concurrently.
type Clock interface {
	// Now returns the time of day.
	Now() time.Time
	// NewTimer returns a timer that fires once, d from now, however the time of
	// day is set meanwhile.
	NewTimer(d time.Duration) *time.Timer
}

// System is the machine's clock.
type System struct{}

// Now is time.Now.
func (System) Now() time.Time { return time.Now() }

// NewTimer is time.NewTimer.
func (System) NewTimer(d time.Duration) *time.Timer { return time.NewTimer(d) }

// Jumping is the machine's clock with a time of day that can be set. It is for
// tests, and works in a synctest bubble.
type Jumping struct{ offset atomic.Int64 }

// NewJumping returns a clock that has not jumped yet.
func NewJumping() *Jumping { return &Jumping{} }

// Jump moves the time of day, backwards if by is negative. Timers run on as if
// nothing had happened, as real ones do.
func (j *Jumping) Jump(by time.Duration) { j.offset.Add(int64(by)) }

// Now returns the machine's time, moved by all jumps so far.
func (j *Jumping) Now() time.Time {
	// Without the monotonic reading, which a jump must not move but Add would.
	return time.Now().Round(0).Add(time.Duration(j.offset.Load()))
}

// NewTimer is time.NewTimer.
func (*Jumping) NewTimer(d time.Duration) *time.Timer { return time.NewTimer(d) }
