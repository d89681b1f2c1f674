package guest

import (
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

// WithinHeader names a directory that a file call must stay in, symbolic links
// followed. Given more than once, any of them will do. It is not part of E2B's
// protocol.
const WithinHeader = "Sandpit-Within"

// target is a file that a call means, whether it is there or not. It is reached
// through a beneath.Root, so that whoever changes directories to links meanwhile
// cannot lead a call elsewhere.
type target struct {
	user user
	path string // as the client knows it: absolute and clean

	root *beneath.Root
	real string // absolute, without links
	rel  string // the same from root
}

// resolveTarget returns the place that a call means by p. If follow is false and the
// last element is a symbolic link, the place is the link. The caller closes it.
func resolveTarget(header http.Header, u user, p string, follow bool) (*target, error) {
	if strings.Contains(p, "\x00") {
		return nil, fmt.Errorf("path %q: %w", p, syscall.EINVAL)
	}
	pl := &target{user: u, path: u.resolvePath(p)}
	if len(pl.path) >= syscall.PathMax { // else one would get there name by name
		return nil, &fs.PathError{Op: "resolve", Path: pl.path[:100] + "...", Err: syscall.ENAMETOOLONG}
	}
	var err error
	if pl.real, err = realPath(pl.path, follow); err != nil {
		return nil, err
	}
	base, err := findConfinement(header.Values(WithinHeader), pl)
	if err != nil {
		return nil, err
	}
	if pl.root, err = beneath.Open(base); err != nil {
		return nil, err
	}
	if pl.rel = strings.TrimPrefix(strings.TrimPrefix(pl.real, base), "/"); pl.rel == "" {
		pl.rel = "."
	}
	return pl, nil
}

// clientError gives an error about p the path that the client knows; without a place it keeps its
// path. What does not exist is called not found.
func (p *target) clientError(err error) error {
	pathErr, ok := errors.AsType[*fs.PathError](err)
	if !ok || p == nil && !errors.Is(pathErr.Err, fs.ErrNotExist) {
		return err
	}
	renamed := &fs.PathError{Op: callName(pathErr.Op), Path: pathErr.Path, Err: pathErr.Err}
	if p != nil {
		renamed.Path = p.path
	}
	if errors.Is(pathErr.Err, fs.ErrNotExist) {
		renamed.Err = errNotFound{pathErr.Err}
	}
	return renamed
}

// callName is what clients know a system call by: openat is open, and lstat stays lstat.
func callName(op string) string {
	if strings.HasSuffix(op, "stat") {
		return op
	}
	return strings.TrimSuffix(op, "at")
}

// errNotFound is the error of a file that does not exist.
type errNotFound struct{ error }

func (errNotFound) Error() string { return "file not found" }

func (e errNotFound) Unwrap() error { return e.error }

func (p *target) closeRoot() { _ = p.root.Close() } // a directory that was only read

// errOutside is a path that leads out of where it may go.
type errOutside struct{ path string }

func (e errOutside) Error() string {
	return fmt.Sprintf("path %s leads outside of where it may go", e.path)
}

func (e errOutside) Is(target error) bool { return target == fs.ErrPermission }

// findConfinement returns the directory of dirs that p is in, and the machine's root if
// there are none.
func findConfinement(dirs []string, p *target) (string, error) {
	if len(dirs) == 0 {
		return "/", nil
	}
	for _, dir := range dirs {
		if !path.IsAbs(dir) {
			return "", fmt.Errorf("header %s: %q is not absolute: %w", WithinHeader, dir, syscall.EINVAL)
		}
		real, err := realPath(path.Clean(dir), true)
		if err == nil && isWithin(real, p.real) {
			return real, nil
		}
	}
	return "", errOutside{p.path}
}

// isWithin reports whether p is dir or below it; both are clean.
func isWithin(dir, p string) bool {
	return dir == "/" || p == dir || strings.HasPrefix(p, dir+"/")
}

// maxLinks is how many symbolic links a path may lead through, as in Linux.
const maxLinks = 40

// realPath returns the absolute and clean path p without symbolic links; its
// last element is kept as it is unless follow is true. What is not there counts
// as a name.
func realPath(p string, follow bool) (string, error) {
	done, rest := "/", strings.TrimPrefix(p, "/")
	for links := 0; rest != ""; {
		var name string
		name, rest, _ = strings.Cut(rest, "/")
		switch name {
		case "", ".":
			continue
		case "..":
			done = path.Dir(done)
			continue
		}
		next := path.Join(done, name)
		if rest == "" && !follow {
			return next, nil
		}
		info, err := os.Lstat(next)
		switch {
		case errors.Is(err, fs.ErrNotExist) && !strings.Contains("/"+rest+"/", "/../"),
			errors.Is(err, syscall.ENOTDIR): // whoever uses it hears of it
			return path.Join(next, rest), nil
		case err != nil:
			return "", err
		case info.Mode()&fs.ModeSymlink == 0:
			done = next
			continue
		}
		if links++; links > maxLinks {
			return "", &fs.PathError{Op: "resolve", Path: p, Err: syscall.ELOOP}
		}
		target, err := os.Readlink(next)
		if err != nil {
			return "", err
		}
		if path.IsAbs(target) {
			done = "/"
		}
		if rest = target + "/" + rest; len(rest) > syscall.PathMax {
			return "", &fs.PathError{Op: "resolve", Path: p, Err: syscall.ENAMETOOLONG}
		}
	}
	return done, nil
}

// openParent returns the directory that p is in, opened, and p's name in it.
func (p *target) openParent() (dir *beneath.Root, name string, err error) {
	if p.rel == "." {
		return nil, "", &fs.PathError{Op: "use", Path: p.path, Err: syscall.EBUSY}
	}
	dir, err = p.root.OpenRoot(path.Dir(p.rel))
	return dir, path.Base(p.rel), err
}

// makeParents makes the directories above p that are missing, owned by its user.
func (p *target) makeParents() error {
	if p.rel == "." {
		return nil
	}
	return makeDirs(p.root, path.Dir(p.rel), p.user)
}

// makeDirs makes a directory and those above it that are missing, owned by u.
func makeDirs(root *beneath.Root, dir string, u user) error {
	info, err := root.Lstat(dir)
	if err == nil {
		if !info.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: "/" + dir, Err: syscall.ENOTDIR}
		}
		return nil
	}
	if parent := path.Dir(dir); parent != dir {
		if err := makeDirs(root, parent, u); err != nil {
			return err
		}
	}
	if err := root.Mkdir(dir, 0o755); err != nil {
		if errors.Is(err, fs.ErrExist) {
			return nil
		}
		return err
	}
	return root.Lchown(dir, u.uid, u.gid)
}
