package sandpit

import (
	"io"
	"strconv"
	"time"
)

// Command is a process to be started.
type Command struct {
	// Args is the program and its arguments. The program is looked up in the
	// process's PATH unless it contains a slash. No shell is involved.
	Args []string
	// Env is added to the sandbox's environment; the last value of a name wins.
	Env map[string]string
	// Dir is where it starts. Default: the sandbox's working directory.
	Dir string
	// User as in Spec.User. Default: the sandbox's.
	User string
	// Timeout kills the process. Zero means no limit. The sandbox keeps the
	// clock; a caller that must be certain keeps its own as well.
	Timeout time.Duration
	// Tag is a name by which others find the process. Default: none.
	Tag string
	// ID names the command in the guest's Journal (see ValidateCommandID). With one,
	// nobody who follows the command holds it back, however slowly they read, and
	// Start can be repeated: if an answer was lost, AlreadyExists says that the
	// command runs or has run. Default: the guest chooses one, which Process.ID
	// tells, and a slow Stdout or Stderr holds the process back.
	//
	// A guest that keeps no journal refuses an ID with Unsupported.
	ID string
	// Terminal gives the process a terminal of this size. Its output all goes
	// to Stdout. Default: none.
	Terminal *TerminalSize
	// Stdin is copied to the process until EOF, which closes its input. Nil
	// means an empty input. After the process has ended at most one more Read
	// is outstanding; the caller ends it by closing what it reads from.
	Stdin io.Reader
	// Stdout and Stderr take the output as it comes, each from one goroutine.
	// A slow writer holds the process back, unless the command has an ID of the
	// caller's. Nil discards.
	Stdout, Stderr io.Writer
}

// Streams are what flows into and out of a process, as in a Command.
type Streams struct {
	Stdin          io.Reader
	Stdout, Stderr io.Writer
}

// TerminalSize is the size of a terminal in characters.
type TerminalSize struct {
	Cols, Rows uint16
}

// Signal is a signal that a process can be sent.
type Signal int

// The signals that every guest understands, by their Linux numbers.
const (
	SIGKILL Signal = 9
	SIGTERM Signal = 15
)

// ExitStatus says how a process ended, as the guest reports it.
type ExitStatus struct {
	// Code is the exit code; for a process killed by a signal it is 128 plus
	// the signal's number, as a shell has it.
	Code int
	// Signaled is true when a signal ended the process.
	Signaled bool
	// OutOfMemory is true when it was killed because the sandbox's memory had
	// run out.
	OutOfMemory bool
}

// String returns the status as a person would say it.
func (s ExitStatus) String() string {
	if s.OutOfMemory {
		return "killed: out of memory"
	}
	if s.Signaled {
		return "killed by signal " + strconv.Itoa(s.Code-128)
	}
	return "exit status " + strconv.Itoa(s.Code)
}
