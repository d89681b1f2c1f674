package sandpit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"
)

// Code says what kind of failure an error is, independent of where it
// happened. A Code is itself an error, so errors.Is(err, sandpit.NotFound)
// works on every error that Errorf returns. Each front end (HTTP, command line, MCP)
// translates codes in one table.
type Code string

// The codes. An error without a code is Internal.
const (
	// Invalid is a request that can never succeed as it is.
	Invalid Code = "invalid"
	// Unauthenticated is a missing or wrong credential.
	Unauthenticated Code = "unauthenticated"
	// PermissionDenied is refused by policy or by the machine's permissions.
	PermissionDenied Code = "permission_denied"
	// NotFound is a name of something that does not exist.
	NotFound Code = "not_found"
	// AlreadyExists is a name that is in use.
	AlreadyExists Code = "already_exists"
	// Conflict is a request that the current state forbids.
	Conflict Code = "conflict"
	// Exhausted is a limit or quota that is reached, or a full disk.
	Exhausted Code = "exhausted"
	// Unsupported is something this provider or machine cannot do.
	Unsupported Code = "unsupported"
	// Unavailable may succeed when tried again.
	Unavailable Code = "unavailable"
	// Timeout is a deadline that passed.
	Timeout Code = "timeout"
	// Canceled is a request that its caller canceled.
	Canceled Code = "canceled"
	// Gone is a sandbox, or a process in it, that no longer exists.
	Gone Code = "gone"
	// Internal is a defect of sandpit or of a part it relies on.
	Internal Code = "internal"
)

// Error returns the code as text.
func (c Code) Error() string { return string(c) }

// Error is a failure with its code, its cause and, where a remedy is known,
// a hint: one sentence or command that says what to do.
type Error struct {
	Code Code
	Hint string
	Err  error
	// Subject is what the failure concerns, as far as it is known: see SubjectOf.
	Subject Subject
	// Retry says that the same request may succeed later: see Retryable.
	Retry bool
	// RetryAfter is how long to wait before repeating the request. Zero: unknown.
	RetryAfter time.Duration
	// RequestID identifies the request in the log of the server that reported the error.
	// Clients of a server set it.
	RequestID string
}

// Subject says what a failure concerns. Fields that are unknown are empty.
type Subject struct {
	// Provider is the name of the sandbox's provider.
	Provider string
	// Sandbox is the sandbox that the operation concerned.
	Sandbox ID
	// Operation is the operation, as the audit trail names it ("create"), or the route of
	// a request.
	Operation string
}

// or returns s with its empty fields taken from other.
func (s Subject) or(other Subject) Subject {
	return Subject{
		Provider: cmp.Or(s.Provider, other.Provider), Sandbox: cmp.Or(s.Sandbox, other.Sandbox),
		Operation: cmp.Or(s.Operation, other.Operation),
	}
}

// Error returns the text of the cause. Front ends show code and hint
// separately.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is this error's code.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && code == e.Code
}

// Errorf returns an error with a code. The format works as in fmt.Errorf, %w
// included.
func Errorf(code Code, format string, args ...any) error {
	return &Error{Code: code, Err: fmt.Errorf(format, args...)}
}

// WithHint adds a remedy to err and keeps its code. It returns nil for nil.
func WithHint(err error, hint string) error {
	if err == nil {
		return nil
	}
	return &Error{Code: CodeOf(err), Hint: hint, Err: err}
}

// CodeOf returns the code of err: the outermost Code in its chain, or the one
// that fits a well-known standard error, else Internal. It returns "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	if c, ok := errors.AsType[Code](err); ok {
		return c
	}
	switch {
	case errors.Is(err, context.Canceled):
		return Canceled
	case errors.Is(err, context.DeadlineExceeded):
		return Timeout
	case errors.Is(err, fs.ErrNotExist):
		return NotFound
	case errors.Is(err, fs.ErrExist):
		return AlreadyExists
	case errors.Is(err, fs.ErrPermission):
		return PermissionDenied
	}
	return Internal
}

// HintOf returns the outermost hint in err's chain, or "".
func HintOf(err error) string {
	var hint string
	each(err, func(e *Error) bool {
		hint = e.Hint
		return hint == ""
	})
	return hint
}

// WithSubject adds to err what it concerns, and keeps its code. What err already says goes
// before. It returns nil for nil.
func WithSubject(err error, s Subject) error {
	if err == nil {
		return nil
	}
	if SubjectOf(err).or(s) == SubjectOf(err) {
		return err
	}
	return &Error{Code: CodeOf(err), Subject: SubjectOf(err).or(s), Err: err}
}

// SubjectOf returns what err concerns. Each field comes from the outermost error in the chain
// that has it.
func SubjectOf(err error) Subject {
	var s Subject
	each(err, func(e *Error) bool {
		s = s.or(e.Subject)
		return true
	})
	return s
}

// WithRetry marks err as retryable after the given time, zero being unknown: the request
// changed nothing, and its obstacle is temporary. It keeps the code of err and returns nil
// for nil.
func WithRetry(err error, after time.Duration) error {
	if err == nil {
		return nil
	}
	return &Error{Code: CodeOf(err), Retry: true, RetryAfter: after, Err: err}
}

// Retryable reports whether the same request may succeed later: err is Unavailable, or
// WithRetry marked it.
func Retryable(err error) bool {
	retry := CodeOf(err) == Unavailable
	each(err, func(e *Error) bool {
		retry = retry || e.Retry
		return !retry
	})
	return retry
}

// RetryAfterOf returns how long to wait before repeating a request that failed with err. The
// outermost error in the chain that has a time decides. Zero: unknown.
func RetryAfterOf(err error) time.Duration {
	var after time.Duration
	each(err, func(e *Error) bool {
		after = e.RetryAfter
		return after == 0
	})
	return after
}

// RequestIDOf returns the ID of the request that failed with err at a server, or "".
func RequestIDOf(err error) string {
	var id string
	each(err, func(e *Error) bool {
		id = e.RequestID
		return id == ""
	})
	return id
}

// each calls f for the errors of this package in err's chain, outermost first, until f
// returns false.
func each(err error, f func(*Error) bool) {
	for err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok || !f(e) {
			return
		}
		err = e.Err
	}
}
