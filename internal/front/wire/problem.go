package wire

import "github.com/sandpit-dev/sandpit"

// ContentTypeProblem is the media type of a Problem.
const ContentTypeProblem = "application/problem+json"

// Problem is an error in the format of RFC 9457, with sandpit's code and a hint.
type Problem struct {
	Type      string       `json:"type" doc:"Always about:blank: the code is the kind of problem."`
	Title     string       `json:"title" doc:"The meaning of the status."`
	Status    int          `json:"status"`
	Detail    string       `json:"detail,omitempty" doc:"What went wrong."`
	Code      sandpit.Code `json:"code" doc:"The kind of failure: invalid, unauthenticated, permission_denied, not_found, already_exists, conflict, exhausted, unsupported, unavailable, timeout, canceled, gone or internal."`
	Hint      string       `json:"hint,omitempty" doc:"What to do about it."`
	Retryable bool         `json:"retryable" doc:"Whether the same request may succeed later. If so and the code is exhausted, nothing was done. The header Retry-After has the number of seconds to wait."`
	Provider  string       `json:"provider,omitempty" doc:"The provider of the sandbox."`
	Sandbox   sandpit.ID   `json:"sandbox,omitempty" doc:"The sandbox that the request was for."`
	Operation string       `json:"operation,omitempty" doc:"The operation that failed, such as create, or the route of the request."`
	RequestID string       `json:"request_id,omitempty" doc:"ID of the request in the server's log and audit trail."`
	Errors    []Fault      `json:"errors,omitempty" doc:"The errors in parts of the request."`
}

// Fault is an error in one part of a request.
type Fault struct {
	Message  string `json:"message"`
	Location string `json:"location,omitempty" doc:"The part of the request, such as body.spec.image or query.limit."`
}
