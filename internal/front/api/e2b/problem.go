package e2b

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// problem is an error in the format of E2B.
type problem struct {
	Code    int    `json:"code"`
	Message string `json:"message"`
}

// toStatus returns the HTTP status of an error. E2B's clients report 404 as a missing sandbox,
// 409 as something that was done before, 429 as a limit, and retry 503.
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

// WriteError responds to a request with err. Callers that refuse a request of this API earlier
// use it, too.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(r.Context(), err)
	if (p.Code == http.StatusServiceUnavailable || p.Code == http.StatusTooManyRequests) && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "1")
	}
	writeResponse(w, r, p.Code, p)
}

// problemOf converts an error.
func problemOf(ctx context.Context, err error) problem {
	p := api.ProblemOf(ctx, err)
	text := p.Detail
	if p.Hint != "" {
		text += "; " + p.Hint
	}
	return problem{toStatus(p.Code), text}
}
