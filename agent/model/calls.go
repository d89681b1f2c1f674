package model

import (
	"fmt"
	"net/http"
	"time"
)

// Calls says how the clients of vendors send requests. The zero value of a field means its
// default.
//
// A request is repeated after a rate limit (429), an overload, a failure of the vendor (5xx) and
// a lost connection, until Attempts or RetryTime is used up. It is never repeated once
// Generate has called onDelta, because the caller has used a part of the message then; with an
// onDelta of nil it is repeated whenever the connection is lost.
type Calls struct {
	// Client sends the requests. Its redirects are not followed. Default: one with the proxies of
	// the environment and without a time limit.
	Client *http.Client
	// Attempts is how often a request is sent at most. Default: 5.
	Attempts int
	// RetryTime bounds the sum of the waits between attempts. A vendor's Retry-After that does not
	// fit ends the attempts. Default: 1 minute.
	RetryTime time.Duration
	// RetryDelay is the first wait if the vendor names none. It doubles each time, up to 10 s.
	// Default: 500 ms.
	RetryDelay time.Duration
	// IdleTimeout is how long a response may stay silent. Default: 5 minutes.
	IdleTimeout time.Duration
}

// APIError is a failure that a vendor's API reported. Its texts contain no secret.
type APIError struct {
	// Status is the HTTP status. 0: the failure was reported in the stream of a response.
	Status int
	// Type, Code and Param are what the vendor calls the failure, such as "rate_limit_error", and
	// the parameter that it concerns. Default: unknown.
	Type, Code, Param string
	// Message is the vendor's text.
	Message string
	// RequestID identifies the request for the vendor's support. Default: unknown.
	RequestID string
}

// Error returns the status and the vendor's text.
func (e *APIError) Error() string {
	text := e.Message
	if text == "" {
		text = http.StatusText(e.Status)
	}
	switch {
	case e.Status != 0 && e.Type != "":
		return fmt.Sprintf("HTTP %d (%s): %s", e.Status, e.Type, text)
	case e.Status != 0:
		return fmt.Sprintf("HTTP %d: %s", e.Status, text)
	case e.Type != "":
		return fmt.Sprintf("%s: %s", e.Type, text)
	}
	return text
}
