package stdioconn

import (
	"sync"
	"time"
)

// deadline is a time that can be changed while a goroutine waits for it.
type deadline struct{ *deadlineState }

type deadlineState struct {
	mu    sync.Mutex
	timer *time.Timer
	past  chan struct{} // closed when the time has passed
}

func newDeadline() deadline { return deadline{&deadlineState{past: make(chan struct{})}} }

// setTime changes the time. The zero time means never.
func (d deadline) setTime(t time.Time) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timer != nil && !d.timer.Stop() {
		<-d.past // the timer is closing it
	}
	d.timer = nil
	isPast := false
	select {
	case <-d.past:
		isPast = true
	default:
	}
	switch left := time.Until(t); {
	case t.IsZero():
		if isPast {
			d.past = make(chan struct{})
		}
	case left > 0:
		if isPast {
			d.past = make(chan struct{})
		}
		past := d.past
		d.timer = time.AfterFunc(left, func() { close(past) })
	case !isPast:
		close(d.past)
	}
}

// done returns a channel that is closed when the time has passed.
func (d deadline) done() <-chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.past
}

func (d deadline) isOver() bool {
	select {
	case <-d.done():
		return true
	default:
		return false
	}
}
