package cli

import (
	"strconv"

	"github.com/sandpit-dev/sandpit"
)

// Exit statuses besides those of the command itself, by the conventions of
// shells, timeout(1) and container engines.
const (
	statusUsage         = 2   // the command line or configuration makes no sense
	statusTimeout       = 124 // the command took too long and was killed
	statusFailed        = 125 // sandpit itself failed
	statusNotExecutable = 126 // it is there, but no program, or not for this user
	statusNotFound      = 127 // there is no such program in the sandbox
	statusSignal        = 128 // and the signal's number: a signal ended this program, 130 being Ctrl-C
)

// exitStatus ends the program with a status and no message.
type exitStatus int

// Error returns the status as text.
func (s exitStatus) Error() string { return "exit status " + strconv.Itoa(int(s)) }

// exitCode is the one place that turns an error into an exit status.
func exitCode(err error) int {
	if sandpit.CodeOf(err) == sandpit.Invalid {
		return statusUsage
	}
	return statusFailed
}
