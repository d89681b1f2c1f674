package sandpit

import (
	"context"
	"io"
	"regexp"
	"time"
)

// Journal is an optional ability of a Guest: what its commands put out, and how
// they ended, can be had again as long as the sandbox lives. All methods may be
// called concurrently, and return Gone once the sandbox has ended.
//
// The guest keeps the output of every command in bounded room: the oldest goes
// first, and how much is missing is always told. What a sandbox tells of itself
// is a claim: a program that is root inside can make it a wrong one.
type Journal interface {
	// ListCommands lists the commands that were started, those that have ended
	// included, oldest first. Of very many that have ended the oldest are forgotten.
	ListCommands(ctx context.Context) ([]CommandInfo, error)

	// GetCommand returns one command. NotFound: there is none of this id.
	GetCommand(ctx context.Context, id string) (CommandInfo, error)

	// Follow replays the output of a command from o.From on and goes on until the
	// command has ended and all of it is told. It never holds the command back. What
	// it returns says how far it came, with an error too: with that as o.From the
	// next call goes on, and nothing is told twice or left out.
	//
	// NotFound: there is no command of this id. Invalid: it has put out less than
	// o.From says.
	Follow(ctx context.Context, id string, o FollowOptions) (Followed, error)

	// ForgetCommand drops a command that has ended, its output and its exit status.
	// Its id may be used again then. NotFound. Conflict: it runs.
	ForgetCommand(ctx context.Context, id string) error
}

// CommandInfo describes a command that was started, also when it has ended.
type CommandInfo struct {
	ID  string
	PID int
	// Args is the program and its arguments, or the beginning of them: ArgsCut is
	// true when there was more.
	Args    []string
	ArgsCut bool
	// Tag is the command's own. One longer than 256 bytes is "" once it has ended.
	Tag string
	// Terminal is true if it has a terminal: then all output is in Stdout.
	Terminal bool
	// StartedAt is by the sandbox's clock.
	StartedAt time.Time
	// Ended is true once it has ended and its output is complete. The fields up to
	// Stdout are set then.
	Ended   bool
	EndedAt time.Time
	Status  ExitStatus
	// TimedOut is true when the command's own timeout killed it.
	TimedOut bool
	// Stdout and Stderr are what it has put out so far.
	Stdout, Stderr Journaled
}

// Journaled is how much of a stream there was.
type Journaled struct {
	// Size is how many bytes were put out.
	Size int64
	// Dropped is how many of these are not kept any more.
	Dropped int64
}

// Offsets are a place in the output of a command: how many bytes of each stream
// come before it.
type Offsets struct {
	Stdout, Stderr int64
}

// FollowOptions are what Follow tells, and whom. The zero value waits for the end
// and tells of no output.
type FollowOptions struct {
	// From is where to begin. Default: at the beginning.
	From Offsets
	// Stdout and Stderr take the output, all from one goroutine and in the order in
	// which the guest saw it. An error ends Follow. Nil discards.
	Stdout, Stderr io.Writer
	// Missing is called, from the same goroutine, where output was dropped: the n
	// bytes of a stream (of Stderr, or else of Stdout) from offset on. Default:
	// Followed tells how much it was altogether.
	Missing func(stderr bool, offset, n int64)
	// NoWait returns when everything that is there has been told.
	NoWait bool
}

// Followed is how far Follow came.
type Followed struct {
	// Next is behind what was told: written without an error, or missing.
	Next Offsets
	// Missing is how much of what was asked for had been dropped, in bytes.
	Missing Offsets
	// Command is what the guest told last about it; its ID is "" if nothing was.
	Command CommandInfo
}

var commandID = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$`)

// ValidateCommandID returns an Invalid error unless id can name a command: 1 to 64
// letters, digits, "_", "." and "-", of which the first is a letter or digit.
func ValidateCommandID(id string) error {
	if !commandID.MatchString(id) {
		return Errorf(Invalid, "command id %.80q: want 1 to 64 letters, digits, _ . and -, a letter or digit first", id)
	}
	return nil
}
