package sandpit

import (
	"context"
	"io"
	"time"
)

// Journal is an optional ability of a Guest: the command log. It keeps the output and the
// exit status of commands as long as the sandbox exists. All methods may be called
// concurrently, and return Gone once the sandbox has ended.
//
// The guest keeps the output of every command in bounded space: the oldest output is
// dropped first, and the amount that is missing is always reported. What a sandbox reports
// about itself is a claim: a program that is root inside can falsify it.
type Journal interface {
	// ListCommands returns the commands that were started, including those that have
	// ended, oldest first. When very many have ended, the oldest are forgotten.
	ListCommands(ctx context.Context) ([]CommandInfo, error)

	// GetCommand returns one command. NotFound.
	GetCommand(ctx context.Context, id string) (CommandInfo, error)

	// Follow replays the output of a command from o.From on and continues until the
	// command has ended and all output is written. It never blocks the command. The
	// result says how far it came, also with an error: a call with that as o.From
	// continues there, without repeating or omitting output.
	//
	// NotFound: no command has this ID. Invalid: o.From is beyond the output.
	Follow(ctx context.Context, id string, o FollowOptions) (Followed, error)

	// ForgetCommand removes a command that has ended, with its output and exit status.
	// Its ID can then be used again. NotFound. Conflict: the command is running.
	ForgetCommand(ctx context.Context, id string) error
}

// CommandInfo describes a command that is running or has ended.
type CommandInfo struct {
	ID  string
	PID int
	// Args is the program and its arguments, or only their beginning if ArgsCut is
	// true.
	Args    []string
	ArgsCut bool
	// Tag is the command's tag. A tag longer than 256 bytes is "" after the command has
	// ended.
	Tag string
	// Terminal is true if the command has a terminal: then all output is in Stdout.
	Terminal bool
	// StartedAt is by the sandbox's clock.
	StartedAt time.Time
	// Ended is true once the command has ended and its output is complete. Only then are
	// the fields up to Stdout set.
	Ended   bool
	EndedAt time.Time
	Status  ExitStatus
	// TimedOut is true if the command's timeout killed it.
	TimedOut bool
	// Stdout and Stderr are the amounts of output so far.
	Stdout, Stderr Journaled
}

// Journaled is the amount of output in one stream.
type Journaled struct {
	// Size is how many bytes were written.
	Size int64
	// Dropped is how many of these are no longer kept.
	Dropped int64
}

// Offsets are a position in the output of a command: the number of bytes before it in each
// stream.
type Offsets struct {
	Stdout, Stderr int64
}

// FollowOptions are the options of Follow. The zero value waits for the end and discards the
// output.
type FollowOptions struct {
	// From is the position to begin at. Default: the beginning.
	From Offsets
	// Stdout and Stderr receive the output, from one goroutine and in the order in
	// which the guest read it. A write error ends Follow. Nil discards the output.
	Stdout, Stderr io.Writer
	// Missing is called, from the same goroutine, where n bytes of a stream (Stderr or
	// else Stdout) were dropped, from offset on. Default: only Followed reports the
	// total.
	Missing func(stderr bool, offset, n int64)
	// NoWait has Follow return after the output so far instead of waiting for the end.
	NoWait bool
}

// Followed is the result of Follow.
type Followed struct {
	// Next is the position behind the output that was written or missing.
	Next Offsets
	// Missing is how many of the requested bytes had been dropped.
	Missing Offsets
	// Command is what the guest reported last about the command; its ID is "" if it
	// reported nothing.
	Command CommandInfo
}

var commandID = newPattern(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// ValidateCommandID returns an Invalid error unless id can name a command: 1 to 64
// letters, digits, "_", "." and "-", of which the first is a letter or digit.
func ValidateCommandID(id string) error {
	if !commandID().MatchString(id) {
		return Errorf(Invalid, "command id %.80q: want 1 to 64 letters, digits, _ . and -, a letter or digit first", id)
	}
	return nil
}
