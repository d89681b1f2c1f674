package mcp

import (
	"context"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// errEnded is what calls hear that go on, or come, when the connection has ended.
var errEnded = sandpit.Errorf(sandpit.Canceled, "the connection has ended")

// openCalls are those that go on: the protocol's own end of a connection waits for them, and
// does not end them.
type openCalls struct {
	mu    sync.Mutex
	ended bool
	next  int
	stops map[int]context.CancelCauseFunc
}

// beginCall returns a context of a call that ends when all are to end, and what is to be
// called when it is done. Canceled: they have ended.
func (c *openCalls) beginCall(ctx context.Context) (context.Context, func(), error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return ctx, nil, errEnded
	}
	ctx, cancel := context.WithCancelCause(ctx)
	if c.stops == nil {
		c.stops = make(map[int]context.CancelCauseFunc)
	}
	number := c.next
	c.next++
	c.stops[number] = cancel
	return ctx, func() {
		cancel(nil)
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.stops, number)
	}, nil
}

// endAll ends all calls, and lets no more begin. It does not wait.
func (c *openCalls) endAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, stop := range c.stops {
		stop(errEnded)
	}
}
