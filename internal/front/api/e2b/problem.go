package e2b

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// problem is a failure as E2B's clients take it.
type problem struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// toStatus returns the HTTP status of a failure. Clients make their errors of it: 404
// has them say that there is no such sandbox, 409 that it was done before, 429 that
// there is too much of something, and 503 that it may be tried again.
func toStatus(code sandpit.Code) int {
	switch code {
	case sandpit.Gone:
		return http.StatusNotFound
	case sandpit.Unsupported:
		return http.StatusNotImplemented
	default:
		return api.Status(code)
	}
}

// WriteError answers a request with err. It is also for those who refuse requests
// before they come here.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(r.Context(), err)
	if (p.Code == http.StatusServiceUnavailable || p.Code == http.StatusTooManyRequests) && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "1")
	}
	writeResponse(w, r, p.Code, p)
}

// problemOf says what went wrong.
func problemOf(ctx context.Context, err error) problem {
	p := api.ProblemOf(ctx, err)
	text := p.Detail
	if p.Hint != "" {
		text += "; " + p.Hint
	}
	return problem{toStatus(p.Code), text}
}
