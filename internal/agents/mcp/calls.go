package mcp

import (
	"context"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// errEnded is the error of calls that are running when the connection ends, or begin later.
var errEnded = sandpit.Errorf(sandpit.Canceled, "the connection has ended")

// openCalls tracks the running calls of a connection. The SDK waits for them at the end of the
// connection but does not cancel them.
type openCalls struct {
	mu    sync.Mutex
	ended bool
	next  int
	stops map[int]context.CancelCauseFunc
}

// beginCall registers a call. It returns a context that endAll cancels, and a function to call
// at the end of the call. Canceled: the connection has ended.
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

// endAll cancels all calls and refuses new ones. It does not wait.
func (c *openCalls) endAll() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ended = true
	for _, stop := range c.stops {
		stop(errEnded)
	}
}
