// Package workspace offers common operations on a sandbox: run commands and collect their
// results, read and write files within bounds, and copy files and directories between this
// machine and the sandbox.
//
// It works with any sandpit.Guest. The responses of a guest are untrusted: outputs and files
// are bounded, timeouts are enforced on this machine too, and copying out of a sandbox never
// writes outside the target.
package workspace

import (
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// Options are the bounds of a Workspace. The zero value of a field means the
// default stated with it.
type Options struct {
	// User runs the commands and owns the files. Default: the sandbox's default user.
	User string
	// Dir is where commands start and relative paths begin; it is absolute.
	// Default: sandpit.DefaultWorkDir.
	Dir string
	// Within has directories that no file call may leave, also through links; a path that
	// leads outside fails with sandpit.PermissionDenied. It does not confine commands.
	// Default: no bounds inside the sandbox.
	Within []string
	// Timeout bounds commands without a timeout of their own. Default: 300 seconds.
	Timeout time.Duration
	// MaxOutput bounds the kept part of each output of a command, its beginning and its end,
	// in bytes. Default: 1 MiB.
	MaxOutput int
	// MaxFile bounds the files that ReadFile returns, in bytes. Default: 64 MiB.
	MaxFile int64
	// MaxTree bounds what one CopyFrom writes to this machine, in bytes. Default: 10 GiB.
	MaxTree int64
}

const (
	defaultTimeout   = 300 * time.Second
	defaultMaxOutput = 1 << 20
	defaultMaxFile   = 64 << 20
	defaultMaxTree   = 10 << 30

	// fileCost is the bytes of memory for each byte of a file that is read as a whole: the
	// bytes, the text, and a copy of the caller.
	fileCost = 3
)

// Workspace runs operations on one sandbox. All methods may be called concurrently.
type Workspace struct {
	guest sandpit.Guest
	files sandpit.Files
	o     Options
}

// New returns a Workspace for the sandbox of g.
//
// Invalid: Dir or one of Within is not absolute. Unsupported: g cannot confine file calls.
func New(g sandpit.Guest, o Options) (*Workspace, error) {
	if o.Dir == "" {
		o.Dir = sandpit.DefaultWorkDir
	}
	if !path.IsAbs(o.Dir) {
		return nil, sandpit.Errorf(sandpit.Invalid, "workspace: directory %q is not absolute", o.Dir)
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.MaxOutput == 0 {
		o.MaxOutput = defaultMaxOutput
	}
	if o.MaxFile == 0 {
		o.MaxFile = defaultMaxFile
	}
	if o.MaxTree == 0 {
		o.MaxTree = defaultMaxTree
	}
	w := &Workspace{guest: g, files: g, o: o}
	if len(o.Within) == 0 {
		return w, nil
	}
	confiner, ok := sandpit.As[sandpit.Confiner](g)
	if !ok {
		return nil, sandpit.Errorf(sandpit.Unsupported, "workspace: this sandbox cannot confine files to directories")
	}
	files, err := confiner.Within(o.Within...)
	if err != nil {
		return nil, fmt.Errorf("workspace: %w", err)
	}
	w.files = files
	return w, nil
}

// resolvePath returns p as a path for the guest.
func (w *Workspace) resolvePath(p string) string {
	if path.IsAbs(p) || p == "~" || strings.HasPrefix(p, "~/") {
		return p
	}
	return path.Join(w.o.Dir, p)
}

// toFileError adds the path of a missing file to the error of a file call.
func toFileError(err error, p string) error {
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return sandpit.Errorf(sandpit.NotFound, "file not found: %s: %w", p, err)
	}
	return err
}

// ReadFile returns the content of a file.
//
// NotFound: no such file. Invalid: not a regular file. Exhausted: larger than Options.MaxFile;
// use ReadRange.
func (w *Workspace) ReadFile(ctx context.Context, p string) ([]byte, error) {
	r, err := w.files.ReadFile(ctx, w.o.User, w.resolvePath(p))
	if err != nil {
		return nil, toFileError(err, p)
	}
	return readAll(ctx, r, p, w.o.MaxFile)
}

// ReadRange returns up to length bytes of a file from offset on. The errors are those of
// ReadFile.
func (w *Workspace) ReadRange(ctx context.Context, p string, offset, length int64) ([]byte, error) {
	if length > w.o.MaxFile {
		return nil, sandpit.Errorf(sandpit.Exhausted, "read %s: %d bytes are more than the limit of %d", p, length, w.o.MaxFile)
	}
	r, err := w.files.ReadRange(ctx, w.o.User, w.resolvePath(p), offset, length)
	if err != nil {
		return nil, toFileError(err, p)
	}
	return readAll(ctx, r, p, length)
}

// readAll reads up to limit bytes. It reserves their memory from the account of ctx.
func readAll(ctx context.Context, r io.ReadCloser, p string, limit int64) ([]byte, error) {
	defer r.Close()
	data, err := memory.ReadAll(ctx, r, limit+1, fileCost)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", p, err)
	}
	if int64(len(data)) > limit {
		return nil, sandpit.WithHint(
			sandpit.Errorf(sandpit.Exhausted, "read %s: the file is larger than %d bytes", p, limit),
			"read a range of it, or copy it out")
	}
	return data, nil
}

// ReadText is ReadFile for text. Invalid: it is not UTF-8.
func (w *Workspace) ReadText(ctx context.Context, p string) (string, error) {
	data, err := w.ReadFile(ctx, p)
	if err != nil {
		return "", err
	}
	if !utf8.Valid(data) {
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "read %s: the file is not text in UTF-8", p), "read it as bytes")
	}
	return string(data), nil
}

// WriteFile replaces a file atomically, and creates missing directories. Exhausted: no space.
func (w *Workspace) WriteFile(ctx context.Context, p string, content io.Reader) error {
	return w.Write(ctx, p, content, sandpit.WriteOptions{})
}

// Write is WriteFile with options.
func (w *Workspace) Write(ctx context.Context, p string, content io.Reader, o sandpit.WriteOptions) error {
	return w.files.WriteFile(ctx, w.o.User, w.resolvePath(p), content, o)
}

// Stat describes a file. NotFound.
func (w *Workspace) Stat(ctx context.Context, p string) (sandpit.File, error) {
	f, err := w.files.Stat(ctx, w.o.User, w.resolvePath(p))
	return f, toFileError(err, p)
}

// Exists reports whether there is a file, a directory or a link.
func (w *Workspace) Exists(ctx context.Context, p string) (bool, error) {
	_, err := w.Stat(ctx, p)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return false, nil
	}
	return err == nil, err
}

// IsDir reports whether p is a directory. A link to one is not a directory.
func (w *Workspace) IsDir(ctx context.Context, p string) (bool, error) {
	f, err := w.Stat(ctx, p)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return false, nil
	}
	return f.Mode.IsDir(), err
}

// ListDir lists a directory down to depth levels, parents before children. NotFound, or
// Invalid for a file.
func (w *Workspace) ListDir(ctx context.Context, p string, depth int) ([]sandpit.File, error) {
	files, err := w.files.ListDir(ctx, w.o.User, w.resolvePath(p), depth)
	return files, toFileError(err, p)
}

// Remove deletes a file, or a directory with its content. A missing path is not an error.
func (w *Workspace) Remove(ctx context.Context, p string) error {
	return w.files.Remove(ctx, w.o.User, w.resolvePath(p))
}
