package sandpit

import (
	"context"
	"io"
	"io/fs"
	"net/http"
	"time"
)

// Guest is the program inside a sandbox that starts processes and serves
// files. All methods may be called concurrently. Every method returns Gone
// once the sandbox has ended.
type Guest interface {
	Processes
	Files
}

// Processes starts and finds processes.
type Processes interface {
	// Start starts cmd and returns once it runs. Its output is copied to the
	// command's writers until it ends; the caller must Wait.
	//
	// The process outlives ctx and the connection: only its own Timeout, a
	// signal or the end of the sandbox ends it. When ctx ends, copying stops
	// and Wait returns the context's error.
	//
	// NotFound: no such program. PermissionDenied: not a program, or not one
	// for this user. Invalid: no command, or no such working directory.
	// Unauthenticated: no such user. AlreadyExists: a command of this ID was
	// started before.
	Start(ctx context.Context, cmd Command) (Process, error)

	// Connect follows a process that Start started, also for another caller:
	// what it puts out from now on goes to s. One that ended a short while ago
	// has no output any more, but its exit status. As with Start, the process
	// outlives ctx and the caller must Wait.
	//
	// NotFound: no such process, or it ended long ago.
	Connect(ctx context.Context, pid int, s Streams) (Process, error)

	// ListProcesses lists the processes that Start started and that run still.
	ListProcesses(ctx context.Context) ([]ProcessInfo, error)
}

// Process is a started process. All methods may be called concurrently.
type Process interface {
	// PID is the number of the process inside.
	PID() int
	// ID names the command in the guest's Journal. It is "" if the guest has none.
	ID() string
	// Signal sends s to the process and everything it started. Gone: it has
	// ended already.
	Signal(ctx context.Context, s Signal) error
	// Resize tells the terminal's new size. Conflict: the process has none.
	Resize(ctx context.Context, size TerminalSize) error
	// Wait returns when the process has ended and all of its output has been
	// copied. Timeout: the command's own timeout killed it. Exhausted: the reader
	// of a command with an ID was so slow that output was dropped before it was
	// read; Journal.Follow has the rest. Many may wait.
	Wait(ctx context.Context) (ExitStatus, error)
}

// ProcessInfo describes a process that runs.
type ProcessInfo struct {
	PID  int
	Args []string
	Env  map[string]string // as the command gave it
	Dir  string            // as the command gave it
	Tag  string
}

// Files reads and changes files. Paths are paths inside; relative ones start
// at the home directory of the user, "~" stands for it. The empty user is the
// sandbox's default user. What is made belongs to the user.
type Files interface {
	// ReadFile opens a file. The caller closes it. NotFound, or Invalid for
	// what is not a regular file.
	ReadFile(ctx context.Context, user, path string) (io.ReadCloser, error)
	// ReadRange opens length bytes of a file from offset on, fewer if it ends
	// before. The caller closes it. Errors as ReadFile; Invalid for a range that
	// cannot be.
	ReadRange(ctx context.Context, user, path string, offset, length int64) (io.ReadCloser, error)
	// WriteFile replaces a file by content, all of it or nothing, making missing
	// directories. Exhausted: no space.
	WriteFile(ctx context.Context, user, path string, content io.Reader, o WriteOptions) error
	// Stat describes a file. NotFound.
	Stat(ctx context.Context, user, path string) (File, error)
	// ListDir lists a directory down to depth levels (at least 1), parents
	// before children. NotFound, or Invalid for a file.
	ListDir(ctx context.Context, user, path string, depth int) ([]File, error)
	// MakeDir makes a directory and its parents. AlreadyExists: it is there.
	MakeDir(ctx context.Context, user, path string) error
	// Move renames a file or directory, making missing parents. NotFound.
	Move(ctx context.Context, user, from, to string) error
	// Remove deletes a file or a whole tree; absent is fine.
	Remove(ctx context.Context, user, path string) error

	// ReadTree opens a directory with all that is in it as a tar stream. Its
	// first member, "./", is the directory itself, the others are named relative
	// to it; a file is a stream of one member of its name. Links stay links;
	// sockets, devices and pipes are left out. The caller closes it. NotFound.
	ReadTree(ctx context.Context, user, path string) (io.ReadCloser, error)
	// WriteTree unpacks a tar stream into a directory, which is made if missing.
	// Nothing is written outside of it, whatever the stream says. Modes and times
	// are kept, owners are not. Invalid: not a tar stream, or a member that may
	// not be; the members before it are unpacked then. Exhausted: no space.
	WriteTree(ctx context.Context, user, path string, tar io.Reader) error

	// Watch tells what happens in a directory from now on, until ctx ends or the
	// Watcher is closed. NotFound, or Invalid for a file. Exhausted: too many
	// directories.
	Watch(ctx context.Context, user, path string, o WatchOptions) (Watcher, error)
}

// Confiner is an optional ability of a Guest: file calls that cannot leave some
// directories.
type Confiner interface {
	// Within returns the same files, where each path must lead into one of dirs,
	// symbolic links followed: else the call fails with PermissionDenied, and
	// nothing is touched. The dirs are absolute and may be links themselves. It
	// is Invalid to give none, or a relative one.
	Within(dirs ...string) (Files, error)
}

// GuestServer is an optional ability of a Guest: the HTTP protocol that it speaks
// itself, for clients that know it. The protocol is the guest's own business.
type GuestServer interface {
	// HTTP reaches the guest with its key added, which the caller never sees.
	// Requests name a path; what else their URL and Host say does not count. The
	// key cannot be changed this way: that is refused with PermissionDenied. An
	// answer is the guest's own word, but for these bounds: its head has at most
	// 64 KiB, the body of one that is not a success as well, and 101 fails with
	// Internal. Unavailable, Gone and Conflict as Instance.HTTP.
	HTTP() http.RoundTripper
}

// Secreter is an optional ability of a Guest: environment that it tells nobody but the
// processes that it starts.
type Secreter interface {
	// SetSecrets gives processes that are started from then on these variables, which go
	// before those of the Spec; those that were given before are forgotten. They are in
	// memory only, and gone when the sandbox is stopped or its memory is saved: who
	// answers for it gives them again. Invalid: not names and values.
	SetSecrets(ctx context.Context, secrets map[string]string) error
}

// WriteOptions are how a file is written. The zero value keeps the permissions
// of a file that is there, else gives 0644, and no metadata.
type WriteOptions struct {
	// Mode is the file's permissions. Default: those it has, else 0644.
	Mode fs.FileMode
	// Metadata are the caller's own marks, told by Stat; what the file had is
	// replaced. Keys are lower case.
	Metadata map[string]string
}

// File describes one file inside a sandbox.
type File struct {
	Name  string
	Path  string // absolute
	Mode  fs.FileMode
	Size  int64 // bytes
	Owner string
	Group string
	// ModifiedAt is by the sandbox's clock.
	ModifiedAt time.Time
	// LinkTarget is the absolute target of a symbolic link, else "".
	LinkTarget string
	// Metadata are the marks that WriteFile gave it.
	Metadata map[string]string
}

// WatchOptions are what a Watcher tells. The zero value is one directory.
type WatchOptions struct {
	// Recursive includes the directories below, also those that come later.
	Recursive bool
	// Describe adds the file to each event, as far as it is there.
	Describe bool
}

// Watcher tells what happens in a directory. Its methods may be called
// concurrently.
type Watcher interface {
	// Next returns the next event. Gone: the directory or the sandbox is no
	// more. Exhausted: more happened than could be told; look for yourself.
	Next(ctx context.Context) (FileEvent, error)
	// Close ends it. It is idempotent.
	Close() error
}

// FileEvent is one thing that happened to a file.
type FileEvent struct {
	// Name is the file's path relative to the watched directory.
	Name string
	Type FileEventType
	// File is set if asked for and as far as the file is there.
	File *File
}

// FileEventType says what happened.
type FileEventType string

// The types of events. A file that is renamed is FileRenamed under its old name
// and FileCreated under the new.
const (
	FileCreated FileEventType = "create"
	FileWritten FileEventType = "write"
	FileRemoved FileEventType = "remove"
	FileRenamed FileEventType = "rename"
	FileChanged FileEventType = "chmod" // permissions, owner or times
)
