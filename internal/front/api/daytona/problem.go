package daytona

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// source is the part of Daytona that its clients expect control errors from.
const source = "DAYTONA_API"

// problem is the response to a failed call.
type problem struct {
	Path      string    `json:"path"`
	Timestamp time.Time `json:"timestamp"`
	Status    int       `json:"statusCode"`
	Error     string    `json:"error"`
	Message   string    `json:"message"`
	Code      string    `json:"code"`
	Source    string    `json:"source"`
}

// statusError is an error with a status that its code does not have by itself.
type statusError struct {
	error

	status int
}

func (e *statusError) Unwrap() error { return e.error }

// refuse returns an error with a status, for requests that Daytona's API refuses by another
// status than sandpit's.
func refuse(status int, code sandpit.Code, format string, args ...any) error {
	return &statusError{sandpit.Errorf(code, format, args...), status}
}

// describeQuota returns the error of a change that a quota or limit does not permit with the status
// that Daytona's API has for it, and other errors as they are. What a busy server refuses for a
// moment keeps the status 429, after which clients repeat the request.
func describeQuota(err error) error {
	if sandpit.CodeOf(err) != sandpit.Exhausted || sandpit.Retryable(err) {
		return err
	}
	return &statusError{err, http.StatusBadRequest}
}

// asStatusError returns the status error in err.
func asStatusError(err error) (*statusError, bool) { return errors.AsType[*statusError](err) }

// toStatus returns the HTTP status of a code.
func toStatus(code sandpit.Code) int {
	if code == sandpit.Gone {
		return http.StatusNotFound
	}
	return api.Status(code)
}

// WriteError responds to a request with err. Callers that refuse a request of this API earlier
// use it, too.
func WriteError(w http.ResponseWriter, r *http.Request, err error) {
	p := problemOf(r.Context(), r, err)
	if (p.Status == http.StatusServiceUnavailable || p.Status == http.StatusTooManyRequests) && w.Header().Get("Retry-After") == "" {
		w.Header().Set("Retry-After", "1")
	}
	writeResponse(w, r, p.Status, p)
}

// problemOf converts an error.
func problemOf(ctx context.Context, r *http.Request, err error) problem {
	p := api.ProblemOf(ctx, err)
	status := toStatus(p.Code)
	if special, ok := asStatusError(err); ok {
		status = special.status
	}
	text := p.Detail
	if p.Hint != "" {
		text += "; " + p.Hint
	}
	title := http.StatusText(status)
	if title == "" {
		title = p.Title
	}
	return problem{
		Path: r.URL.Path, Timestamp: time.Now().UTC(), Status: status, Error: title, Message: text,
		Code: strings.ToUpper(string(p.Code)), Source: source,
	}
}
