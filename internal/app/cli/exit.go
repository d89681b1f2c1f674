package cli

import (
	"errors"
	"strconv"

	"github.com/sandpit-dev/sandpit"
)

// Exit statuses besides those of the command in the sandbox, by the conventions of shells,
// timeout(1) and container engines.
const (
	statusNo            = 1   // check, doctor, audit verify, tool call: a problem was found
	statusUsage         = 2   // the command line, configuration or request is invalid
	statusMissing       = 3   // it does not exist, or was deleted
	statusUnreachable   = 4   // the server, or a service that it needs, cannot be reached
	statusRefused       = 5   // the server rejects the key, or the operation is not permitted
	statusConflict      = 6   // its state does not allow the operation
	statusExhausted     = 7   // a limit is reached, or there were too many requests
	statusTimeout       = 124 // the command timed out and was killed
	statusFailed        = 125 // sandpit itself failed
	statusNotExecutable = 126 // the command cannot be executed, or not by this user
	statusNotFound      = 127 // the sandbox has no such program
	statusSignal        = 128 // plus the signal's number: a signal ended this program; 130 is Ctrl-C
)

// exitHelp describes the exit statuses in the help.
const exitHelp = `Exit status:
  0    success
  1    check, doctor, audit verify and tool call: a problem was found
  2    the command line, the configuration or the request is invalid
  124  the command in the sandbox timed out and was killed
  125  sandpit itself failed
  126  the command cannot be executed, or this user may not execute it
  127  the sandbox has no such program
  128  plus a signal's number: the signal ended the command; 130 is Ctrl-C
Otherwise run, exec and shell exit with the command's status. Commands that send requests to
a server also exit with
  3    the sandbox or other object does not exist, or was deleted
  4    the server, or a service that it needs such as a registry, cannot be reached
  5    the server rejects the key, or the operation is not permitted
  6    the state of the sandbox or other object does not allow the operation
  7    a limit or quota is reached, or there were too many requests`

// exitStatus is an error that ends the program with a status and without a message.
type exitStatus int

// Error returns the status as text.
func (s exitStatus) Error() string { return "exit status " + strconv.Itoa(int(s)) }

// verbError is a failure of a command that sends requests to a server. Its exit status cannot be
// mistaken for that of a command in a sandbox.
type verbError struct{ err error }

func (e verbError) Error() string { return e.err.Error() }
func (e verbError) Unwrap() error { return e.err }

// exitCodeOf returns the exit status for an error.
func exitCodeOf(err error) int {
	code := sandpit.CodeOf(err)
	if code == sandpit.Invalid {
		return statusUsage
	}
	if _, ok := errors.AsType[verbError](err); !ok {
		return statusFailed
	}
	switch code {
	case sandpit.NotFound, sandpit.Gone:
		return statusMissing
	case sandpit.Unavailable:
		return statusUnreachable
	case sandpit.Unauthenticated, sandpit.PermissionDenied:
		return statusRefused
	case sandpit.Conflict, sandpit.AlreadyExists:
		return statusConflict
	case sandpit.Exhausted:
		return statusExhausted
	case sandpit.Timeout:
		return statusTimeout
	default:
		return statusFailed
	}
}
