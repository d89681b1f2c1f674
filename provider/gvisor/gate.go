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
	mu       sync.Mutex
	reopened chan struct{} // nil while it is open; closed when it opens again
	calls    int           // calls without an answer
	drained  chan struct{} // closed when there are none; nil if nobody waits for that
}

// gateLimit is how long those calls have. They take milliseconds, unless they wait for
// something.
const gateLimit = time.Second

// close returns when calls have their answers, or do not get them in time. open ends it.
func (g *gate) close(ctx context.Context) (open func()) {
	g.mu.Lock()
	shut := make(chan struct{})
	g.reopened = shut
	none := make(chan struct{})
	if g.calls == 0 {
		close(none)
	} else {
		g.drained = none
	}
	g.mu.Unlock()
	limit := time.NewTimer(gateLimit)
	defer limit.Stop()
	select {
	case <-none:
	case <-limit.C:
	case <-ctx.Done():
	}
	return func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.reopened, g.drained = nil, nil
		close(shut)
	}
}

// enter returns when a call may begin. left is to be called when it has its answer.
func (g *gate) enter(ctx context.Context) (left func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for g.reopened != nil {
		shut := g.reopened
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
	left, err := t.gate.enter(r.Context())
	if err != nil {
		return nil, err
	}
	if isUpload(r) {
		left()
	} else {
		defer left()
	}
	return t.RoundTripper.RoundTrip(r)
}

// isUpload reports whether a call has its answer only when somebody else has said all: it is
// not waited for.
func isUpload(r *http.Request) bool {
	return r.Method == http.MethodPost && (r.URL.Path == "/files" || r.URL.Path == "/tree" || strings.HasSuffix(r.URL.Path, "/StreamInput"))
}
