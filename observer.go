package sandpit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// GuestAction names a kind of GuestCall.
type GuestAction string

// The actions that are observed. What only looks (lists, states of files, output of commands)
// is not.
const (
	RunCommand    GuestAction = "run command"
	OpenTerminal  GuestAction = "open terminal"
	AttachCommand GuestAction = "attach command" // follow a command that somebody has started, with its input
	SignalCommand GuestAction = "signal command"
	ReadFile      GuestAction = "read file"
	WriteFile     GuestAction = "write file"
	ReadTree      GuestAction = "read directory"
	WriteTree     GuestAction = "write directory"
	MakeDirectory GuestAction = "make directory"
	MoveFile      GuestAction = "move file"
	RemoveFile    GuestAction = "remove file"
)

// GuestCall is one use of the guest of a sandbox. It has no contents, and of a command's
// arguments only a digest.
type GuestCall struct {
	Action GuestAction
	// Program is the program of a command, as it was named. Args is how many arguments follow
	// it, and Digest is DigestArgs of all.
	Program string
	Args    int
	Digest  string
	// PID is the process that is attached to, or gets a signal, and Signal is that.
	PID    int
	Signal Signal
	// Path is the file, as the call names it, and To where it is moved to.
	Path, To string
	// Files is how many files were written, if more than one, Path being the first.
	Files int
	// Bytes is how much content was read or written.
	Bytes int64
	// Took is how long it took, for a command until it ran.
	Took time.Duration
	// Err is why it was not done.
	Err error
}

// NotAdmitted is what a GuestCall has for a reason when GuestObserver.Admit has refused the
// command: the caller's error may repeat what the command has of secrets.
func NotAdmitted(err error) error {
	return Errorf(CodeOf(err), "it was refused before it started")
}

// DigestArgs returns the SHA-256 of a command line as /proc/PID/cmdline has it, each argument
// ended by a zero byte, as hexadecimal digits.
func DigestArgs(args []string) string {
	sum := sha256.New()
	for _, arg := range args {
		_, _ = sum.Write([]byte(arg + "\x00")) // a hash takes everything
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// CommandCall describes a command.
func CommandCall(action GuestAction, args []string) GuestCall {
	c := GuestCall{Action: action, Args: max(0, len(args)-1), Digest: DigestArgs(args)}
	if len(args) > 0 {
		c.Program = strings.ToValidUTF8(args[0], "?")
	}
	return c
}

// GuestObserver is told of calls, and may refuse commands. Its functions get the context of
// the call, are called by many at the same time, and must not block.
type GuestObserver struct {
	// Admit decides about a command before it starts: args as for Command.Args, and the
	// directory that it starts in, "" if the call names none. Its error is what the caller
	// gets. Default: nil, which admits all. It is not asked about what is typed in a terminal.
	Admit func(ctx context.Context, args []string, dir string) error
	// Called is told once of each call: of a command when it runs, of all else when it is
	// done, and of each that fails.
	Called func(context.Context, GuestCall)
	// Ended is told once of each command that was to be started: how long it took, and how it
	// ended or why nobody knows.
	Ended func(ctx context.Context, took time.Duration, status ExitStatus, err error)
}

// ObservedGuest is an optional ability of a Guest: it tells of every call, by whichever way it
// comes, GuestServer.HTTP included.
type ObservedGuest interface {
	// Observe has o told of the calls that begin from now on, in place of who was told before.
	Observe(o GuestObserver)
	CallObserver
}

// CallObserver is an optional ability of a Guest, for those who run commands inside of another
// one that was started before, such as a shell.
type CallObserver interface {
	// Observer is who is to be told. Its functions are never nil.
	Observer() GuestObserver
}

// ObserverOf returns who is to be told of calls of a guest. Its functions are never nil.
func ObserverOf(g any) GuestObserver {
	if o, ok := As[CallObserver](g); ok {
		return o.Observer()
	}
	return GuestObserver{}.OrNobody()
}

// OrNobody returns o with functions that do nothing where it has none.
func (o GuestObserver) OrNobody() GuestObserver {
	if o.Called == nil {
		o.Called = func(context.Context, GuestCall) {}
	}
	if o.Ended == nil {
		o.Ended = func(context.Context, time.Duration, ExitStatus, error) {}
	}
	return o
}
