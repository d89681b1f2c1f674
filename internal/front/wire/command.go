package wire

import (
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Command describes a command that was started, also when it has ended.
type Command struct {
	ID  string `json:"command_id"`
	PID int    `json:"pid"`
	// Args is the program and its arguments, or the beginning of them.
	Args      []string  `json:"args" doc:"The program and its arguments, or the beginning of them."`
	ArgsCut   bool      `json:"args_cut,omitempty" doc:"There was more."`
	Tag       string    `json:"tag,omitempty"`
	Terminal  bool      `json:"terminal,omitempty" doc:"It has a terminal: all output is in stdout."`
	StartedAt time.Time `json:"started_at" doc:"By the sandbox's clock."`
	// Running is false once it has ended and its output is complete.
	Running     bool      `json:"running"`
	EndedAt     time.Time `json:"ended_at,omitzero"`
	ExitCode    int       `json:"exit_code" doc:"Once it has ended: 128 plus the number of the signal that killed it, if one did."`
	TimedOut    bool      `json:"timed_out,omitempty"`
	OutOfMemory bool      `json:"out_of_memory,omitempty"`
	Stdout      Journaled `json:"stdout"`
	Stderr      Journaled `json:"stderr"`
}

// Journaled is how much of a stream there was.
type Journaled struct {
	Size    int64 `json:"size" doc:"Bytes put out so far."`
	Dropped int64 `json:"dropped,omitempty" doc:"Bytes of these that are not kept any more."`
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

// Missing is output that was dropped before it could be told, as the event "missing"
// has it.
type Missing struct {
	Stream string `json:"stream" enum:"stdout,stderr"`
	Offset int64  `json:"offset" doc:"Where it begins."`
	Bytes  int64  `json:"bytes"`
}

// Signal asks for a signal to be sent.
type Signal struct {
	Signal int `json:"signal" doc:"Its number: 15 (TERM) or 9 (KILL) for commands, 1 to 64 for jobs."`
}
