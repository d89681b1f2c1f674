package sandpit

import (
	"context"
	"io"
	"io/fs"
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
	// Unauthenticated: no such user.
	Start(ctx context.Context, cmd Command) (Process, error)
}

// Process is a started process. All methods may be called concurrently.
type Process interface {
	// PID is the number of the process inside.
	PID() int
	// Signal sends s to the process and everything it started. Gone: it has
	// ended already.
	Signal(ctx context.Context, s Signal) error
	// Resize tells the terminal's new size. Conflict: the process has none.
	Resize(ctx context.Context, size TerminalSize) error
	// Wait returns when the process has ended and all of its output has been
	// copied. Timeout: the command's own timeout killed it. Many may wait.
	Wait(ctx context.Context) (ExitStatus, error)
}

// Files reads and changes files. Paths are paths inside; relative ones start
// at the home directory of the user, "~" stands for it. The empty user is the
// sandbox's default user.
type Files interface {
	// ReadFile opens a file. The caller closes it. NotFound, or Invalid for a
	// directory.
	ReadFile(ctx context.Context, user, path string) (io.ReadCloser, error)
	// WriteFile replaces a file, making missing directories; the file belongs
	// to user. Exhausted: no space.
	WriteFile(ctx context.Context, user, path string, content io.Reader) error
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
}
