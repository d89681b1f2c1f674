package gvisor

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"
)

// gate lets calls to a sandbox's guest pass, but while the sandbox is being saved: then all
// connections are closed, and nobody could tell of a call under way whether it was done.
// Those that have no answer yet get a moment for it, and others wait.
type gate struct {
	mu     sync.Mutex
	shut   chan struct{} // nil while it is open; closed when it opens again
	passed int           // calls without an answer
	none   chan struct{} // closed when there are none; nil if nobody waits for that
}

// gatePatience is how long those calls have. They take milliseconds, unless they wait for
// something.
const gatePatience = time.Second

// close returns when calls have their answers, or do not get them in time. open ends it.
func (g *gate) close(ctx context.Context) (open func()) {
	g.mu.Lock()
	shut := make(chan struct{})
	g.shut = shut
	none := make(chan struct{})
	if g.passed == 0 {
		close(none)
	} else {
		g.none = none
	}
	g.mu.Unlock()
	limit := time.NewTimer(gatePatience)
	defer limit.Stop()
	select {
	case <-none:
	case <-limit.C:
	case <-ctx.Done():
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.shut, g.none = nil, nil
		close(shut)
	}
}

// pass returns when a call may begin. left is to be called when it has its answer.
func (g *gate) pass(ctx context.Context) (left func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.shut != nil {
		shut := g.shut
		g.mu.Unlock()
		select {
		case <-shut:
		case <-ctx.Done():
		}
		g.mu.Lock()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	g.passed++
	return g.left, nil
}

func (g *gate) left() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.passed--
	if g.passed == 0 && g.none != nil {
		close(g.none)
		g.none = nil
	}
}

// gated is a transport whose calls pass a gate.
type gated struct {
	gate *gate
	http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t gated) RoundTrip(r *http.Request) (*http.Response, error) {
	left, err := t.gate.pass(r.Context())
	if err != nil {
		return nil, err
	}
	if isLong(r) {
		left()
	} else {
		defer left()
	}
	return t.RoundTripper.RoundTrip(r)
}

// isLong reports whether a call has its answer only when somebody else has said all: it is
// not waited for.
func isLong(r *http.Request) bool {
	return r.Method == http.MethodPost && (r.URL.Path == "/files" || r.URL.Path == "/tree" || strings.HasSuffix(r.URL.Path, "/StreamInput"))
}
