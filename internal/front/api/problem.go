package api

import (
	"context"
	"encoding/json"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// statuses says which HTTP status stands for a code.
var statuses = map[sandpit.Code]int{
	sandpit.Invalid:          http.StatusBadRequest,
	sandpit.Unauthenticated:  http.StatusUnauthorized,
	sandpit.PermissionDenied: http.StatusForbidden,
	sandpit.NotFound:         http.StatusNotFound,
	sandpit.AlreadyExists:    http.StatusConflict,
	sandpit.Conflict:         http.StatusConflict,
	sandpit.Exhausted:        http.StatusTooManyRequests,
	sandpit.Unsupported:      http.StatusUnprocessableEntity,
	sandpit.Unavailable:      http.StatusServiceUnavailable,
	sandpit.Timeout:          http.StatusGatewayTimeout,
	sandpit.Canceled:         499, // the client has gone; nobody reads it
	sandpit.Gone:             http.StatusGone,
	sandpit.Internal:         http.StatusInternalServerError,
}

// maxDetail bounds what a problem says, in bytes.
const maxDetail = 4 << 10

// Status returns the HTTP status that stands for a code.
func Status(code sandpit.Code) int {
	if status, ok := statuses[code]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// ProblemOf describes err for a client.
func ProblemOf(ctx context.Context, err error) wire.Problem {
	code := sandpit.CodeOf(err)
	status := Status(code)
	title := http.StatusText(status)
	if code == sandpit.Canceled {
		title = "Client Closed Request"
	}
	exchange := exchangeOf(ctx)
	exchange.setFailure(err)
	about := sandpit.SubjectOf(sandpit.WithSubject(err, exchange.toSubject()))
	detail, hint := Redact(ctx, err.Error()), Redact(ctx, sandpit.HintOf(err))
	return wire.Problem{
		Type: "about:blank", Title: title, Status: status, Code: code,
		Detail: truncate(detail), Hint: truncate(hint), RequestID: RequestID(ctx),
		Retryable: sandpit.Retryable(err), Provider: about.Provider, Sandbox: about.Sandbox, Operation: truncate(about.Operation),
	}
}

// Redact returns a text of the server as the maker of the request may see it: without the
// server's internals, unless that is an administrator.
func Redact(ctx context.Context, text string) string {
	if p, err := PrincipalOf(ctx); err == nil && p.Admin {
		return text
	}
	return exchangeOf(ctx).redactText(text)
}

// WriteError answers a request with err, unless the answer has begun.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	if wait := sandpit.RetryAfterOf(err); wait > 0 {
		retryAfter(w, wait)
	}
	WriteProblem(w, ProblemOf(r.Context(), err))
}

// WriteProblem answers a request with p.
func WriteProblem(w http.ResponseWriter, p wire.Problem) {
	text, err := json.Marshal(p)
	if err != nil {
		http.Error(w, http.StatusText(http.StatusInternalServerError), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", wire.ContentTypeProblem)
	h.Set("X-Content-Type-Options", "nosniff")
	for name, values := range ProblemHeaders(p) {
		if h.Get(name) == "" {
			h[name] = values
		}
	}
	w.WriteHeader(p.Status)
	_, _ = w.Write(text) // whoever asked has gone then
}

// ProblemHeaders returns the headers that go with a problem.
func ProblemHeaders(p wire.Problem) http.Header {
	h := make(http.Header)
	switch p.Code {
	case sandpit.Exhausted, sandpit.Unavailable:
		h.Set("Retry-After", "1")
	case sandpit.Unauthenticated:
		h.Set("Www-Authenticate", `Bearer realm="sandpit"`)
	default:
	}
	return h
}

func truncate(text string) string {
	return strings.ToValidUTF8(textlen.Shorten(text, maxDetail), "\uFFFD")
}

// WithRequestID returns a context of the request that id names.
func WithRequestID(ctx context.Context, id string) context.Context {
	return manager.WithRequestID(ctx, id)
}

// RequestID names the request, or is "" outside of one.
func RequestID(ctx context.Context) string { return manager.RequestIDOf(ctx) }
