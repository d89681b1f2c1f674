package api

import (
	"context"
	"net/http"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// exchange has what is known about a request and its failure. All methods may be called
// concurrently, and on nil, which has nothing.
type exchange struct {
	private Redactor

	mu      sync.Mutex
	route   string
	sandbox sandpit.ID
	err     error // the last failure that was reported to the client
}

type exchangeKey struct{}

func withExchange(ctx context.Context, e *exchange) context.Context {
	return context.WithValue(ctx, exchangeKey{}, e)
}

// exchangeOf returns the exchange of a request behind an Edge, or nil.
func exchangeOf(ctx context.Context) *exchange {
	e, _ := ctx.Value(exchangeKey{}).(*exchange)
	return e
}

// setRoute records the pattern of a request, and the sandbox in its path.
func (e *exchange) setRoute(r *http.Request, pattern string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.route, e.sandbox = pattern, sandboxIn(pattern, r.URL.Path)
}

// setFailure records why the request fails.
func (e *exchange) setFailure(err error) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

// redactText removes internals of the server from a text.
func (e *exchange) redactText(text string) string {
	if e == nil {
		return Redactor{}.Text(text)
	}
	return e.private.Text(text)
}

func (e *exchange) lastFailure() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

// toSubject returns what a failure of the request concerns, if the failure itself does not say
// so.
func (e *exchange) toSubject() sandpit.Subject {
	if e == nil {
		return sandpit.Subject{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return sandpit.Subject{Sandbox: e.sandbox, Operation: e.route}
}

// sandboxIn returns the ID after "sandboxes" in a path, where the pattern has a wildcard, or "".
func sandboxIn(pattern, path string) sandpit.ID {
	if _, behind, found := strings.Cut(pattern, " "); found {
		pattern = behind
	}
	wanted, given := strings.Split(pattern, "/"), strings.Split(path, "/")
	for i := 1; i < min(len(wanted), len(given)); i++ {
		if wanted[i-1] != "sandboxes" || !strings.HasPrefix(wanted[i], "{") {
			continue
		}
		if id := sandpit.ID(given[i]); id.Validate() == nil {
			return id
		}
	}
	return ""
}
