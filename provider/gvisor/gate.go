package gvisor

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"time"
)

// gate stops calls to a sandbox's guest while the sandbox is saved: all connections are closed
// then, and a caller could not know whether an interrupted call was executed. Calls without an
// answer get a moment to finish, and new ones wait.
type gate struct {
	mu       sync.Mutex
	reopened chan struct{} // nil while the gate is open; closed when it opens again
	calls    int           // calls without an answer
	drained  chan struct{} // closed when there are no calls; nil if close does not wait
}

// gateLimit is how long calls have to finish. Usual calls take milliseconds.
const gateLimit = time.Second

// close closes the gate and returns when all calls have their answers, or gateLimit has passed.
// open opens the gate again.
func (g *gate) close(ctx context.Context) (open func()) {
	g.mu.Lock()
	reopened := make(chan struct{})
	g.reopened = reopened
	drained := make(chan struct{})
	if g.calls == 0 {
		close(drained)
	} else {
		g.drained = drained
	}
	g.mu.Unlock()
	timer := time.NewTimer(gateLimit)
	defer timer.Stop()
	select {
	case <-drained:
	case <-timer.C:
	case <-ctx.Done():
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.reopened, g.drained = nil, nil
		close(reopened)
	}
}

// enter returns when a call may begin. The caller calls leave when the call has its answer.
func (g *gate) enter(ctx context.Context) (leave func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.reopened != nil {
		reopened := g.reopened
		g.mu.Unlock()
		select {
		case <-reopened:
		case <-ctx.Done():
		}
		g.mu.Lock()
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
	g.calls++
	return g.leave, nil
}

func (g *gate) leave() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.calls--
	if g.calls == 0 && g.drained != nil {
		close(g.drained)
		g.drained = nil
	}
}

// gatedTransport is a transport whose calls pass a gate.
type gatedTransport struct {
	gate *gate
	http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t gatedTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	leave, err := t.gate.enter(r.Context())
	if err != nil {
		return nil, err
	}
	if isUpload(r) {
		leave()
	} else {
		defer leave()
	}
	return t.RoundTripper.RoundTrip(r)
}

// isUpload reports whether a call has its answer only after the client has sent everything: close
// does not wait for such calls.
func isUpload(r *http.Request) bool {
	return r.Method == http.MethodPost && (r.URL.Path == "/files" || r.URL.Path == "/tree" || strings.HasSuffix(r.URL.Path, "/StreamInput"))
}
