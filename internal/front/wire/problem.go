package wire

import "github.com/sandpit-dev/sandpit"

// ContentTypeProblem is the media type of a Problem.
const ContentTypeProblem = "application/problem+json"

// Problem is an error as RFC 9457 has it, with our code and the remedy.
type Problem struct {
	// Type is "about:blank": Code says what kind of problem it is.
	Type   string `json:"type"`
	Title  string `json:"title" doc:"The meaning of the status."`
	Status int    `json:"status"`
	// Detail is what went wrong.
	Detail string `json:"detail,omitempty"`
	// Code is one of sandpit's.
	Code sandpit.Code `json:"code" doc:"What kind of failure it is: invalid, unauthenticated, permission_denied, not_found, already_exists, conflict, exhausted, unsupported, unavailable, timeout, canceled, gone or internal."`
	// Hint is what to do about it.
	Hint string `json:"hint,omitempty" doc:"What to do about it."`
	// Retryable says that the same request may succeed later.
	Retryable bool `json:"retryable" doc:"Whether the same request may succeed later. If so and the code is exhausted, nothing was done. The header Retry-After says how many seconds to wait."`
	// Provider, Sandbox and Operation are what it concerns, as far as that is known.
	Provider  string     `json:"provider,omitempty" doc:"The provider of the sandbox."`
	Sandbox   sandpit.ID `json:"sandbox,omitempty" doc:"The sandbox that the request was for."`
	Operation string     `json:"operation,omitempty" doc:"What was to be done, such as create, or the route of the request."`
	// RequestID names the request in the server's log and audit trail.
	RequestID string  `json:"request_id,omitempty" doc:"Names the request in the server's log and audit trail."`
	Errors    []Fault `json:"errors,omitempty" doc:"What is wrong with which part of the request."`
}

// Fault is one thing that is wrong with a request.
type Fault struct {
	Message  string `json:"message"`
	Location string `json:"location,omitempty" doc:"Such as body.spec.image or query.limit."`
}
