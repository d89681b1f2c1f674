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

	// Connect attaches to a process that Start started, possibly for another caller:
	// its output from now on goes to s. A process that ended recently has no output,
	// but still has its exit status. As with Start, the process outlives ctx and the
	// caller must Wait.
	//
	// NotFound: no such process, or it ended long ago.
	Connect(ctx context.Context, pid int, s Streams) (Process, error)

	// ListProcesses returns the processes that Start started and that are still running.
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
	// Resize sets the size of the terminal. Conflict: the process has no terminal.
	Resize(ctx context.Context, size TerminalSize) error
	// Wait returns when the process has ended and all of its output has been
	// copied. Timeout: the command's own timeout killed it. Exhausted: the reader
	// of a command with an ID was so slow that output was dropped before it was
	// read; Journal.Follow has the rest. Several callers may wait.
	Wait(ctx context.Context) (ExitStatus, error)
}

// ProcessInfo describes a running process.
type ProcessInfo struct {
	PID  int
	Args []string
	Env  map[string]string // as the command gave it
	Dir  string            // as the command gave it
	Tag  string
}

// Files reads and changes files. Paths are paths inside the sandbox; a relative
// path starts at the home directory of the user, which "~" also names. The empty user is
// the sandbox's default user, the owner of the files and directories that are created.
type Files interface {
	// ReadFile opens a file. The caller closes it. NotFound, or Invalid for
	// what is not a regular file.
	ReadFile(ctx context.Context, user, path string) (io.ReadCloser, error)
	// ReadRange opens length bytes of a file from offset on, fewer if it ends
	// before. The caller closes it. Errors as ReadFile; Invalid for an
	// impossible range.
	ReadRange(ctx context.Context, user, path string, offset, length int64) (io.ReadCloser, error)
	// WriteFile replaces the content of a file atomically and creates missing
	// directories. Exhausted: no space.
	WriteFile(ctx context.Context, user, path string, content io.Reader, o WriteOptions) error
	// Stat describes a file. NotFound.
	Stat(ctx context.Context, user, path string) (File, error)
	// ListDir lists a directory down to depth levels (at least 1), parents
	// before children. NotFound, or Invalid for a file.
	ListDir(ctx context.Context, user, path string, depth int) ([]File, error)
	// MakeDir creates a directory and its parents. AlreadyExists: it exists.
	MakeDir(ctx context.Context, user, path string) error
	// Move renames a file or directory and creates missing parents. NotFound.
	Move(ctx context.Context, user, from, to string) error
	// Remove deletes a file or a whole tree. A missing file is not an error.
	Remove(ctx context.Context, user, path string) error

	// ReadTree opens a directory and everything below it as a tar stream. Its
	// first member, "./", is the directory itself, the others are named relative
	// to it; a file is a stream of one member of its name. Links stay links;
	// sockets, devices and pipes are left out. The caller closes it. NotFound.
	ReadTree(ctx context.Context, user, path string) (io.ReadCloser, error)
	// WriteTree unpacks a tar stream into a directory, which is created if missing.
	// Nothing is written outside the directory, whatever the stream contains. Modes
	// and times are kept, owners are not. Invalid: not a tar stream, or a forbidden
	// member; the members before it remain unpacked. Exhausted: no space.
	WriteTree(ctx context.Context, user, path string, tar io.Reader) error

	// Watch reports changes in a directory from now on, until ctx ends or the
	// Watcher is closed. NotFound, or Invalid for a file. Exhausted: too many
	// directories.
	Watch(ctx context.Context, user, path string, o WatchOptions) (Watcher, error)
}

// Confiner is an optional ability of a Guest: file calls that cannot leave given
// directories.
type Confiner interface {
	// Within returns the same files, but each path must lead into one of dirs after
	// symbolic links are resolved. Otherwise the call fails with PermissionDenied and
	// changes nothing. The dirs are absolute and may be links themselves. Invalid: no
	// dirs, or a relative one.
	Within(dirs ...string) (Files, error)
}

// GuestServer is an optional ability of a Guest: access to the guest's own HTTP
// protocol, for clients that speak it.
type GuestServer interface {
	// HTTP reaches the guest and adds its key, which the caller never sees. Only the
	// path and query of a request's URL count. A request that would change the key
	// fails with PermissionDenied. The response comes from the guest unchanged, within
	// these bounds: its header has at most 64 KiB, so has the body of an error
	// response, and status 101 fails with Internal. Unavailable, Gone and Conflict as
	// for Instance.HTTP.
	HTTP() http.RoundTripper
}

// Secreter is an optional ability of a Guest: environment variables that only the
// processes it starts can see.
type Secreter interface {
	// SetSecrets replaces the secret variables of all processes that start from then on.
	// They take precedence over those of the Spec. They are kept in memory only and are
	// lost when the sandbox is stopped or its memory is saved; the manager sets them
	// again. Invalid: not names and values.
	SetSecrets(ctx context.Context, secrets map[string]string) error
}

// WriteOptions are the options of WriteFile. The zero value keeps the permissions of an
// existing file, gives a new one 0644, and sets no metadata.
type WriteOptions struct {
	// Mode is the file's permissions. Default: those of the existing file, else 0644.
	Mode fs.FileMode
	// Metadata are the caller's own key-value pairs, which Stat returns. They replace
	// those that the file had. Keys are lower case.
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
	// Metadata are the key-value pairs that WriteFile stored.
	Metadata map[string]string
}

// WatchOptions are the options of Watch. The zero value watches one directory.
type WatchOptions struct {
	// Recursive includes the directories below, including those created later.
	Recursive bool
	// Describe adds the File to each event if the file still exists.
	Describe bool
}

// Watcher reports changes in a directory. Its methods may be called
// concurrently.
type Watcher interface {
	// Next returns the next event. Gone: the directory or the sandbox no longer
	// exists. Exhausted: events were lost; list the directory instead.
	Next(ctx context.Context) (FileEvent, error)
	// Close ends the watch. It is idempotent.
	Close() error
}

// FileEvent is one change of a file.
type FileEvent struct {
	// Name is the file's path relative to the watched directory.
	Name string
	Type FileEventType
	// File is set if WatchOptions.Describe is true and the file still exists.
	File *File
}

// FileEventType is the kind of a FileEvent.
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
