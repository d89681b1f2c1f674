package api

import (
	"context"
	"net/http"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// exchange is what is known of a request and of why it failed. All methods may be called
// concurrently, and on nil, which knows nothing.
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

// exchangeOf returns the exchange of a request behind an Edge; nil: there is none.
func exchangeOf(ctx context.Context) *exchange {
	e, _ := ctx.Value(exchangeKey{}).(*exchange)
	return e
}

// setRoute notes which pattern a request is for, and the sandbox that its path names.
func (e *exchange) setRoute(r *http.Request, pattern string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.route, e.sandbox = pattern, sandboxIn(pattern, r.URL.Path)
}

// setFailure notes why the request fails.
func (e *exchange) setFailure(err error) {
	if e == nil {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.err = err
}

// redactText takes the server's internals out of a text.
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

// toSubject is what a failure of the request concerns if the failure itself does not say.
func (e *exchange) toSubject() sandpit.Subject {
	if e == nil {
		return sandpit.Subject{}
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	return sandpit.Subject{Sandbox: e.sandbox, Operation: e.route}
}

// sandboxIn returns the ID that stands in a path after "sandboxes", where the pattern has a
// wildcard; "" if none does.
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
