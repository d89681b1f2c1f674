package sandpit

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"time"
)

// GuestAction is the kind of a GuestCall.
type GuestAction string

// The observed actions. Calls that only read lists, file states or command output are not
// observed.
const (
	RunCommand    GuestAction = "run command"
	OpenTerminal  GuestAction = "open terminal"
	AttachCommand GuestAction = "attach command" // attach to a running command, with its input
	SignalCommand GuestAction = "signal command"
	ReadFile      GuestAction = "read file"
	WriteFile     GuestAction = "write file"
	ReadTree      GuestAction = "read directory"
	WriteTree     GuestAction = "write directory"
	MakeDirectory GuestAction = "make directory"
	MoveFile      GuestAction = "move file"
	RemoveFile    GuestAction = "remove file"
)

// GuestCall is one call of the guest of a sandbox. It contains no file contents, and only a
// digest of a command's arguments.
type GuestCall struct {
	Action GuestAction
	// Program is the program of a command, as the call names it. Args is the number of
	// arguments after it, and Digest is DigestArgs of the whole command line.
	Program string
	Args    int
	Digest  string
	// PID is the process that the call attaches to or signals, and Signal is the signal.
	PID    int
	Signal Signal
	// Path is the file, as the call names it, and To the target of a move.
	Path, To string
	// Files is the number of files written, if more than one; Path is the first.
	Files int
	// Bytes is the amount of content read or written.
	Bytes int64
	// Took is the duration of the call; for a command, the time until it started.
	Took time.Duration
	// Err is why the call failed.
	Err error
}

// NotAdmitted returns the GuestCall.Err of a command that GuestObserver.Admit refused. Unlike
// the caller's error it does not repeat the command, which may contain secrets.
func NotAdmitted(err error) error {
	return Errorf(CodeOf(err), "it was refused before it started")
}

// DigestArgs returns the SHA-256, in hexadecimal, of a command line as in /proc/PID/cmdline:
// each argument followed by a zero byte.
func DigestArgs(args []string) string {
	sum := sha256.New()
	for _, arg := range args {
		_, _ = sum.Write([]byte(arg + "\x00")) // a hash never fails
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// CommandCall returns the GuestCall of a command.
func CommandCall(action GuestAction, args []string) GuestCall {
	c := GuestCall{Action: action, Args: max(0, len(args)-1), Digest: DigestArgs(args)}
	if len(args) > 0 {
		c.Program = strings.ToValidUTF8(args[0], "?")
	}
	return c
}

// GuestObserver observes guest calls and may refuse commands. Its functions receive the
// context of the call, may be called concurrently, and must not block.
type GuestObserver struct {
	// Admit decides about a command before it starts, by its Command.Args and its directory,
	// "" if the call names none. The caller receives its error. It does not see what is
	// typed in a terminal. Default: nil, which admits every command.
	Admit func(ctx context.Context, args []string, dir string) error
	// Confine returns the directories that a file call may not leave, after symbolic links are
	// resolved; "." is the sandbox's working directory. A call fails with Unsupported if the
	// guest cannot confine it. Default: nil, which confines no call, as no directories do.
	Confine func(ctx context.Context) []string
	// Called is called once for each call: for a command when it has started, for every
	// other call when it is complete, and for each failure.
	Called func(context.Context, GuestCall)
	// Ended is called once for each command, started or not, with its duration and its exit
	// status, or the error if the status is unknown.
	Ended func(ctx context.Context, took time.Duration, status ExitStatus, err error)
}

// ObservedGuest is an optional ability of a Guest: it reports every call to an observer,
// including calls through GuestServer.HTTP.
type ObservedGuest interface {
	// Observe sets the observer of new calls, in place of the previous one.
	Observe(o GuestObserver)
	CallObserver
}

// CallObserver is an optional ability of a Guest, for callers that run commands inside a
// program that is already running, such as a shell, and report these themselves.
type CallObserver interface {
	// Observer returns the observer. Its functions are never nil.
	Observer() GuestObserver
}

// ObserverOf returns the observer of a guest. Its functions are never nil.
func ObserverOf(g any) GuestObserver {
	if o, ok := As[CallObserver](g); ok {
		return o.Observer()
	}
	return GuestObserver{}.OrNobody()
}

// OrNobody returns o with empty functions in place of nil ones.
func (o GuestObserver) OrNobody() GuestObserver {
	if o.Called == nil {
		o.Called = func(context.Context, GuestCall) {}
	}
	if o.Ended == nil {
		o.Ended = func(context.Context, time.Duration, ExitStatus, error) {}
	}
	return o
}
