package liveness

import (
	"context"
	"sync"
	"time"
)

// call is something that waits for the guest.
type call struct {
	monitor *Monitor
	end     func(error)

	mu      sync.Mutex
	over    bool
	turn    int // grows with each limit that is set or taken away
	timer   *time.Timer
	excused bool // time has passed that was not the guest's
}

// endWatch ends the watch.
func (c *call) endWatch() {
	c.stopLimit()
	c.monitor.removeCall(c)
}

// stopLimit takes the limit away for good.
func (c *call) stopLimit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.clearLocked()
}

func (c *call) clearLocked() {
	c.turn++
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

// removeLimit takes the limit away.
func (c *call) removeLimit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clearLocked()
}

// setLimit ends the call after some time, in place of any limit before.
func (c *call) setLimit(d time.Duration) { c.limitFor(d, d) }

// limitFor is limit where less is left of the time that an error tells.
func (c *call) limitFor(left, whole time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clearLocked()
	if c.over {
		return
	}
	turn := c.turn
	c.timer = time.AfterFunc(left, func() { c.expireCall(turn, whole) })
}

// expireCall ends the call unless the sandbox cannot answer, as while it is paused: then the
// time begins again.
func (c *call) expireCall(turn int, whole time.Duration) {
	found := c.monitor.probeGuest(context.Background(), c.monitor.o.Recheck)
	c.mu.Lock()
	if c.turn != turn || c.over {
		c.mu.Unlock()
		return
	}
	if found == isUnknown {
		c.excused = true
		c.timer = time.AfterFunc(whole, func() { c.expireCall(turn, whole) })
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	if !c.monitor.removeCall(c) {
		return // it has ended for another reason
	}
	c.stopLimit()
	err := c.monitor.lateError(whole)
	if found == isSilent {
		err = c.monitor.silentError()
	}
	c.end(err)
}

// isExcused reports whether time has passed, since it was asked last, that does not count.
func (c *call) isExcused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.excused
	c.excused = false
	return was
}
