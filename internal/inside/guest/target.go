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

// WithinHeader names a directory that a file call must stay in, with symbolic links followed. With several values,
// any of the directories is allowed. It is not part of E2B's protocol.
const WithinHeader = "Sandpit-Within"

// ConfineHeader is like WithinHeader, and holds besides it. The server sets it, clients the other one. The value "." is
// the sandbox's working directory. A guest that honors the header answers /health with it.
const ConfineHeader = "Sandpit-Confine"

// confinement has the directories of WithinHeader and ConfineHeader. A file must be in one directory of each list that
// is not empty.
type confinement [2][]string

func confinementOf(header http.Header) confinement {
	return confinement{header.Values(WithinHeader), header.Values(ConfineHeader)}
}

// resolveWorkDir replaces "." in ConfineHeader by the working directory, which is the home of the default user if none
// is set.
func (g *Guest) resolveWorkDir(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for i, dir := range r.Header[ConfineHeader] {
			if dir != "." {
				continue
			}
			set := g.currentSettings()
			if dir = set.workDir; dir == "" {
				u, err := g.accounts.lookupUser(set.user)
				if err != nil {
					answerError(w, err)
					return
				}
				dir = u.home
			}
			r.Header[ConfineHeader][i] = dir
		}
		next.ServeHTTP(w, r)
	})
}

// target is the file that a call names; it need not exist. It is reached through a beneath.Root, so a program that
// replaces directories by links meanwhile cannot lead a call elsewhere.
type target struct {
	user user
	path string // as the client knows it: absolute and clean

	root *beneath.Root
	real string // absolute, without links
	rel  string // the same from root
}

// resolveTarget returns the target for the path p. If follow is false and the last element is a symbolic link, the
// target is the link. The caller closes it.
func resolveTarget(header http.Header, u user, p string, follow bool) (*target, error) {
	if strings.Contains(p, "\x00") {
		return nil, fmt.Errorf("path %q: %w", p, syscall.EINVAL)
	}
	pl := &target{user: u, path: u.resolvePath(p)}
	if len(pl.path) >= syscall.PathMax { // longer paths could be reached element by element
		return nil, &fs.PathError{Op: "resolve", Path: pl.path[:100] + "...", Err: syscall.ENAMETOOLONG}
	}
	var err error
	if pl.real, err = realPath(pl.path, follow); err != nil {
		return nil, err
	}
	base, err := confinementOf(header).findBase(pl)
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

// clientError replaces the path in an error about p by the path that the client knows; with a nil target the path
// stays. A missing file is reported as "file not found".
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

// callName returns the name of a system call that clients know: open for openat, but lstat stays lstat.
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

// errOutside is the error for a path that leads out of the allowed directories.
type errOutside struct{ path string }

func (e errOutside) Error() string {
	return fmt.Sprintf("path %s leads outside the allowed directories", e.path)
}

func (e errOutside) Is(target error) bool { return target == fs.ErrPermission }

// findBase returns the innermost directory that p may not leave: the machine's root without a confinement.
func (c confinement) findBase(p *target) (string, error) {
	base := "/"
	for _, dirs := range c {
		found := len(dirs) == 0
		for _, dir := range dirs {
			if !path.IsAbs(dir) {
				return "", fmt.Errorf("confine a file call: directory %q is not absolute: %w", dir, syscall.EINVAL)
			}
			real, err := realPath(path.Clean(dir), true)
			if err != nil || !isWithin(real, p.real) {
				continue
			}
			found = true
			if len(real) > len(base) { // both contain p, so the longer one is inside the other
				base = real
			}
		}
		if !found {
			return "", errOutside{p.path}
		}
	}
	return base, nil
}

// isWithin reports whether p is dir or below it; both are clean.
func isWithin(dir, p string) bool {
	return dir == "/" || p == dir || strings.HasPrefix(p, dir+"/")
}

// maxLinks is how many symbolic links a path may lead through, as in Linux.
const maxLinks = 40

// realPath returns the absolute and clean path p without symbolic links. It keeps a link in the last element unless
// follow is true. Missing files count as plain names.
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
			errors.Is(err, syscall.ENOTDIR): // using the path reports the error
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

// openParent opens the directory of p and returns p's name in it.
func (p *target) openParent() (dir *beneath.Root, name string, err error) {
	if p.rel == "." {
		return nil, "", &fs.PathError{Op: "use", Path: p.path, Err: syscall.EBUSY}
	}
	dir, err = p.root.OpenRoot(path.Dir(p.rel))
	return dir, path.Base(p.rel), err
}

// makeParents creates the missing directories above p, owned by its user.
func (p *target) makeParents() error {
	if p.rel == "." {
		return nil
	}
	return makeDirs(p.root, path.Dir(p.rel), p.user)
}

// makeDirs creates a directory and the missing ones above it, owned by u.
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
