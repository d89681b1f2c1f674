package toolbox

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// source names the server in errors. Daytona's clients choose the class of an exception by the
// source and the code.
const source = "DAYTONA_DAEMON"

// problem is an error in the format of Daytona's toolbox.
type problem struct {
	StatusCode int       `json:"statusCode"`
	Message    string    `json:"message"`
	Code       string    `json:"code"`
	Timestamp  time.Time `json:"timestamp"`
	Path       string    `json:"path"`
	Method     string    `json:"method"`
	Source     string    `json:"source"`
}

// statusError is an error with a status and a code of Daytona that do not follow from its
// sandpit.Code.
type statusError struct {
	status int
	code   string
	err    error
}

// Error implements error.
func (e *statusError) Error() string { return e.err.Error() }

// Unwrap returns the error that got the status.
func (e *statusError) Unwrap() error { return e.err }

// withStatus returns an error that is sent with a status and a code of Daytona.
func withStatus(err error, status int, code string) error { return &statusError{status, code, err} }

// toStatus returns the HTTP status of an error.
func toStatus(code sandpit.Code) int {
	switch code {
	case sandpit.Gone:
		return http.StatusNotFound
	case sandpit.Timeout:
		return http.StatusRequestTimeout
	case sandpit.Unsupported:
		return http.StatusNotImplemented
	default:
		return api.Status(code)
	}
}

// class is how Daytona names a status: as a code, and before a message.
type class struct{ code, prefix string }

// classOf returns the class of a status.
func classOf(status int) class {
	switch status {
	case http.StatusBadRequest:
		return class{"BAD_REQUEST", "bad request: "}
	case http.StatusUnauthorized:
		return class{"UNAUTHORIZED", "unauthorized: "}
	case http.StatusForbidden:
		return class{"FORBIDDEN", "forbidden: "}
	case http.StatusNotFound:
		return class{"NOT_FOUND", "not found: "}
	case http.StatusRequestTimeout:
		return class{"REQUEST_TIMEOUT", "request timeout: "}
	case http.StatusConflict:
		return class{"CONFLICT", "conflict: "}
	case http.StatusGone:
		return class{"GONE", "gone: "}
	case http.StatusTooManyRequests:
		return class{"TOO_MANY_REQUESTS", "too many requests: "}
	case http.StatusNotImplemented:
		return class{"NOT_IMPLEMENTED", "not implemented: "}
	case http.StatusServiceUnavailable:
		return class{"SERVICE_UNAVAILABLE", "service unavailable: "}
	}
	return class{"INTERNAL_SERVER_ERROR", ""}
}

// problemOf converts an error.
func problemOf(ctx context.Context, r *http.Request, err error) problem {
	p := api.ProblemOf(ctx, err)
	status := toStatus(p.Code)
	special, ok := errors.AsType[*statusError](err)
	if ok {
		status = special.status
	}
	c := classOf(status)
	if ok && special.code != "" {
		c.code = special.code
	}
	text := c.prefix + p.Detail
	if p.Hint != "" {
		text += "; " + p.Hint
	}
	return problem{status, text, c.code, time.Now().UTC(), r.URL.Path, r.Method, source}
}

// WriteError responds to a request with err. Callers that refuse a request of this API earlier
// use it, too.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(r.Context(), r, err)
	if (p.StatusCode == http.StatusServiceUnavailable || p.StatusCode == http.StatusTooManyRequests) && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "1")
	}
	setWriteDeadline(w, writeTimeout)
	if err := api.WriteJSON(w, r, p.StatusCode, p); err != nil {
		api.WriteError(w, r, err)
	}
}
