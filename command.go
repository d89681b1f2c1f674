package sandpit

import (
	"io"
	"strconv"
	"time"
)

// Command describes a process to start.
type Command struct {
	// Args is the program and its arguments. The program is looked up in the
	// process's PATH unless it contains a slash. No shell is involved.
	Args []string
	// Env is added to the sandbox's environment; the last value of a name wins.
	Env map[string]string
	// Dir is the directory it starts in. Default: the sandbox's working directory.
	Dir string
	// User as in Spec.User. Default: the sandbox's.
	User string
	// Timeout is the time after which the process is killed. Zero means no limit. The
	// guest measures it; a caller that must not rely on the guest sets a deadline too.
	Timeout time.Duration
	// Tag is a name by which other clients find the process. Default: none.
	Tag string
	// ID names the command in the guest's Journal (see ValidateCommandID). With an ID,
	// slow readers do not block the process, and Start can be repeated: if a response
	// was lost, AlreadyExists means that the command has started. Default: the guest
	// chooses an ID, which Process.ID returns, and a slow Stdout or Stderr blocks the
	// process.
	//
	// A guest without a Journal refuses an ID with Unsupported.
	ID string
	// Terminal gives the process a terminal of this size. Its output all goes
	// to Stdout. Default: none.
	Terminal *TerminalSize
	// Stdin is copied to the process until EOF, which closes its input. Nil
	// is an empty input. After the process has ended at most one more Read
	// is outstanding; the caller ends it by closing what it reads from.
	Stdin io.Reader
	// Stdout and Stderr receive the output as it arrives, each from one goroutine.
	// A slow writer blocks the process unless the caller chose an ID. Nil discards
	// the output.
	Stdout, Stderr io.Writer
}

// Streams are the input and output of a process, as in a Command.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Cols, Rows uint16
}

// Signal is a signal for a process.
type Signal int

// The signals that every guest supports, by their Linux numbers.
const (
	SIGKILL Signal = 9
	SIGTERM Signal = 15
)

// ExitStatus says how a process ended, as the guest reports it.
type ExitStatus struct {
	// Code is the exit code; for a process killed by a signal it is 128 plus
	// the signal's number, as in a shell.
	Code int
	// Signaled is true when a signal ended the process.
	Signaled bool
	// OutOfMemory is true when it was killed because the sandbox ran out of
	// memory.
	OutOfMemory bool
}

// String returns the status as text for people.
func (s ExitStatus) String() string {
	if s.OutOfMemory {
		return "killed: out of memory"
	}
	if s.Signaled {
		return "killed by signal " + strconv.Itoa(s.Code-128)
	}
	return "exit status " + strconv.Itoa(s.Code)
}
