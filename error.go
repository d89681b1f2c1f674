package sandpit

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

// Code says what kind of failure an error is, independent of where it
// happened. A Code is itself an error, so errors.Is(err, sandpit.NotFound)
// works on anything made with Errorf. Each edge (HTTP, command line, MCP)
// translates codes in one table of its own.
type Code string

// The codes. Anything that carries none is Internal.
const (
	// Invalid is a request that can never succeed as it is.
	Invalid Code = "invalid"
	// Unauthenticated is a missing or wrong credential.
	Unauthenticated Code = "unauthenticated"
	// PermissionDenied is refused by policy or by the machine's permissions.
	PermissionDenied Code = "permission_denied"
	// NotFound is a name that nothing answers to.
	NotFound Code = "not_found"
	// AlreadyExists is a name that is taken.
	AlreadyExists Code = "already_exists"
	// Conflict is a request that the present state forbids.
	Conflict Code = "conflict"
	// Exhausted is a limit, quota or disk that is used up.
	Exhausted Code = "exhausted"
	// Unsupported is something this provider or machine cannot do.
	Unsupported Code = "unsupported"
	// Unavailable may succeed when tried again.
	Unavailable Code = "unavailable"
	// Timeout is a deadline that passed.
	Timeout Code = "timeout"
	// Canceled is a request that its maker gave up.
	Canceled Code = "canceled"
	// Gone is a sandbox, or a process in it, that no longer exists.
	Gone Code = "gone"
	// Internal is a defect of ours or of a part we rely on.
	Internal Code = "internal"
)

// Error returns the code as text.
func (c Code) Error() string { return string(c) }

// Error is a failure with its code, its cause and, where the remedy is known,
// a hint: one sentence or command that tells a person what to do.
type Error struct {
	Code Code
	Hint string
	Err  error
}

// Error returns the text of the cause. Code and hint are left to the edge that
// shows them.
func (e *Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is reports whether target is this error's code.
func (e *Error) Is(target error) bool {
	code, ok := target.(Code)
	return ok && code == e.Code
}

// Errorf makes an error with a code. The format works as in fmt.Errorf, %w
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
	for err != nil {
		e, ok := errors.AsType[*Error](err)
		if !ok {
			return ""
		}
		if e.Hint != "" {
			return e.Hint
		}
		err = e.Err
	}
	return ""
}
