package liveness

import (
	"context"
	"sync"
	"time"
)

// call is an operation that waits for the guest.
type call struct {
	monitor *Monitor
	end     func(error)

	mu         sync.Mutex
	over       bool
	generation int // grows each time a limit is set or removed
	timer      *time.Timer
	excused    bool // time passed for which the guest is not responsible
}

// endWatch ends the watching of the call.
func (c *call) endWatch() {
	c.stopLimit()
	c.monitor.removeCall(c)
}

// stopLimit removes the limit permanently.
func (c *call) stopLimit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.clearLocked()
}

func (c *call) clearLocked() {
	c.generation++
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
}

// removeLimit removes the current limit.
func (c *call) removeLimit() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clearLocked()
}

// setLimit sets the time after which the call ends. It replaces any earlier limit.
func (c *call) setLimit(d time.Duration) { c.limitFor(d, d) }

// limitFor sets a limit of left, which is the rest of whole. The error names whole.
func (c *call) limitFor(left, whole time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.clearLocked()
	if c.over {
		return
	}
	generation := c.generation
	c.timer = time.AfterFunc(left, func() { c.expireCall(generation, whole) })
}

// expireCall ends the call. If the sandbox cannot answer, for instance because it is paused,
// it restarts the limit instead.
func (c *call) expireCall(generation int, whole time.Duration) {
	found := c.monitor.probeGuest(context.Background(), c.monitor.o.Recheck)
	c.mu.Lock()
	if c.generation != generation || c.over {
		c.mu.Unlock()
		return
	}
	if found == isUnknown {
		c.excused = true
		c.timer = time.AfterFunc(whole, func() { c.expireCall(generation, whole) })
		c.mu.Unlock()
		return
	}
	c.mu.Unlock()
	if !c.monitor.removeCall(c) {
		return // ended for another reason
	}
	c.stopLimit()
	err := c.monitor.lateError(whole)
	if found == isSilent {
		err = c.monitor.silentError()
	}
	c.end(err)
}

// isExcused reports whether time passed since its last call that does not count.
func (c *call) isExcused() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	was := c.excused
	c.excused = false
	return was
}
