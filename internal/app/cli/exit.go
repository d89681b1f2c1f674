package cli

import (
	"errors"
	"strconv"

	"github.com/sandpit-dev/sandpit"
)

// Exit statuses besides those of the command itself, by the conventions of
// shells, timeout(1) and container engines.
const (
	statusNo            = 1   // check, doctor, audit verify, tool call: something is wrong
	statusUsage         = 2   // the command line or configuration makes no sense
	statusMissing       = 3   // there is no such thing, or it is gone
	statusUnreachable   = 4   // the server, or something that it needs, cannot be reached
	statusRefused       = 5   // the server does not accept the key, or it is not permitted
	statusConflict      = 6   // the state it is in forbids it
	statusExhausted     = 7   // no room, or too many requests
	statusTimeout       = 124 // the command took too long and was killed
	statusFailed        = 125 // sandpit itself failed
	statusNotExecutable = 126 // it is there, but no program, or not for this user
	statusNotFound      = 127 // there is no such program in the sandbox
	statusSignal        = 128 // and the signal's number: a signal ended this program, 130 being Ctrl-C
)

// exitHelp tells the same to people.
const exitHelp = `Exit status:
  0    it worked
  1    check, doctor, audit verify and tool call: something is wrong
  2    the command line, the configuration or the request makes no sense
  124  the command inside took too long and was killed
  125  sandpit itself failed
  126  what shall run inside is no program, or not for this user
  127  there is no such program inside
  128  and a signal's number: the signal ended it, 130 being Ctrl-C
run, exec and shell end with the command's own status else. Commands that ask a
server for something also end with
  3    there is no such thing, or it is gone
  4    the server, or something that it needs such as a registry, cannot be reached
  5    the server does not accept the key, or what was asked for is not permitted
  6    the state it is in forbids it
  7    there is no room, or there were too many requests`

// exitStatus ends the program with a status and no message.
type exitStatus int

// Error returns the status as text.
func (s exitStatus) Error() string { return "exit status " + strconv.Itoa(int(s)) }

// verbError is a failure of a command that asks a server for something. No command
// inside could have ended with its status.
type verbError struct{ err error }

func (e verbError) Error() string { return e.err.Error() }
func (e verbError) Unwrap() error { return e.err }

// exitCodeOf is the one place that turns an error into an exit status.
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
