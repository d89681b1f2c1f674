package wire

import (
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Command describes a command that runs or has ended.
type Command struct {
	ID          string    `json:"command_id"`
	PID         int       `json:"pid"`
	Args        []string  `json:"args" doc:"The program and its arguments, or the beginning of them."`
	ArgsCut     bool      `json:"args_cut,omitempty" doc:"args is only the beginning."`
	Tag         string    `json:"tag,omitempty"`
	Terminal    bool      `json:"terminal,omitempty" doc:"The command has a terminal: all output is in stdout."`
	StartedAt   time.Time `json:"started_at" doc:"By the clock of the sandbox."`
	Running     bool      `json:"running" doc:"False once the command has ended and its output is complete."`
	EndedAt     time.Time `json:"ended_at,omitzero"`
	ExitCode    int       `json:"exit_code" doc:"Set once the command has ended; 128 plus the number of the signal, if a signal killed it."`
	TimedOut    bool      `json:"timed_out,omitempty"`
	OutOfMemory bool      `json:"out_of_memory,omitempty"`
	Stdout      Journaled `json:"stdout"`
	Stderr      Journaled `json:"stderr"`
}

// Journaled is the size of a recorded stream.
type Journaled struct {
	Size    int64 `json:"size" doc:"Bytes written so far."`
	Dropped int64 `json:"dropped,omitempty" doc:"Bytes of these that are no longer available."`
}

// CommandOf describes c.
func CommandOf(c sandpit.CommandInfo) Command {
	args := c.Args
	if args == nil {
		args = []string{}
	}
	return Command{
		ID: c.ID, PID: c.PID, Args: args, ArgsCut: c.ArgsCut, Tag: c.Tag, Terminal: c.Terminal, StartedAt: c.StartedAt,
		Running: !c.Ended, EndedAt: c.EndedAt, ExitCode: c.Status.Code, TimedOut: c.TimedOut, OutOfMemory: c.Status.OutOfMemory,
		Stdout: Journaled(c.Stdout), Stderr: Journaled(c.Stderr),
	}
}

// Missing is the content of the event "missing": output that is no longer available.
type Missing struct {
	Stream string `json:"stream" enum:"stdout,stderr"`
	Offset int64  `json:"offset" doc:"Offset of the first missing byte."`
	Bytes  int64  `json:"bytes"`
}

// Signal is a request to send a signal.
type Signal struct {
	Signal int `json:"signal" doc:"Number of the signal: 15 (TERM) or 9 (KILL) for commands, 1 to 64 for jobs."`
}
