package clock

import "time"

// MinJump is the least that counts as a jump. What is less is how clocks drift
// and are corrected.
const MinJump = 5 * time.Second

// Watch notices that a clock was set, or that the machine slept: both let the
// time of day go further than the time that programs had. It is for one
// goroutine.
type Watch struct {
	clock Clock
	day   time.Time // by the clock, without a monotonic reading
	run   time.Time // by the machine, with one
}

// NewWatch starts to watch c.
func NewWatch(c Clock) *Watch {
	return &Watch{clock: c, day: c.Now().Round(0), run: time.Now()}
}

// Jump returns how far the clock was moved since the last call, or since
// NewWatch; negative if it was set back, zero if that is less than MinJump.
func (w *Watch) Jump() time.Duration {
	_, jump := w.Look()
	return jump
}

// Look also returns the time of day at which it checked for the jump. A caller that acts on
// that time never acts on a jump it has not seen.
func (w *Watch) Look() (time.Time, time.Duration) {
	day, run := w.day, w.run
	w.day, w.run = w.clock.Now().Round(0), time.Now()
	jump := w.day.Sub(day) - w.run.Sub(run)
	if jump.Abs() < MinJump {
		jump = 0
	}
	return w.day, jump
}
