// Package beneath opens files below a directory and nowhere else, whatever the names are and even if other processes
// replace directories by links meanwhile.
//
// It does what os.Root does, and also works inside a sandbox, where os.Root does not: gVisor follows a symbolic link
// that is opened with O_NOFOLLOW and O_DIRECTORY, where os.Root relies on an error. With O_PATH in addition the open
// fails, so this package opens every directory on the way like that.
package beneath

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

const (
	walkFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_NOFOLLOW | unix.O_CLOEXEC
	readFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC
	// maxLinks is how many symbolic links a name may lead through, as in Linux.
	maxLinks = 40
	// batch is how many names of a directory are read at once to remove them.
	batch = 256
)

// ErrEscapes is the error for a name that leads out of the directory. It is an fs.ErrPermission.
const ErrEscapes escapes = "path escapes from its directory"

type escapes string

func (e escapes) Error() string { return string(e) }

// Is makes the error an fs.ErrPermission.
func (e escapes) Is(target error) bool { return target == fs.ErrPermission }

// Root is an open directory. Names are slash-separated paths relative to it; "." is the directory itself. Symbolic
// links in the middle of a name are followed inside the directory; only OpenRoot and OpenDir follow a link in the
// last element. Errors are *fs.PathError with the given name; ErrEscapes: the name leads outside. All methods except
// Close may be called concurrently.
type Root struct{ fd int }

// Open opens a directory; it follows links in the path.
func Open(dir string) (*Root, error) {
	fd, err := ignoringEINTR(func() (int, error) {
		return unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	})
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: err}
	}
	return &Root{fd}, nil
}

// Close closes the directory.
func (r *Root) Close() error { return unix.Close(r.fd) }

// FD returns the descriptor for *at system calls, valid until Close.
func (r *Root) FD() int { return r.fd }

func ignoringEINTR(f func() (int, error)) (int, error) {
	for {
		n, err := f()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// withParent calls f with the parent directory of name and its last element. If follow is true, links are followed in
// the whole name, and f gets the directory itself and ".".
func (r *Root) withParent(op, name string, follow bool, f func(dir int, base string) error) error {
	err := r.walkToParent(name, follow, f)
	if err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

func (r *Root) walkToParent(name string, follow bool, f func(dir int, base string) error) error {
	if name == "" || path.IsAbs(name) || strings.Contains(name, "\x00") {
		return unix.EINVAL
	}
	rest := strings.Split(path.Clean(name), "/")
	if follow {
		rest = append(rest, ".")
	}
	stack := []int{r.fd}
	defer func() {
		for _, fd := range stack[1:] {
			_ = unix.Close(fd) // opened only for lookups
		}
	}()
	for links := 0; len(rest) > 1; {
		element := rest[0]
		switch element {
		case "", ".":
			rest = rest[1:]
			continue
		case "..":
			if len(stack) == 1 {
				return ErrEscapes
			}
			_ = unix.Close(stack[len(stack)-1]) // opened only for lookups
			stack, rest = stack[:len(stack)-1], rest[1:]
			continue
		}
		top := stack[len(stack)-1]
		fd, err := openat(top, element, walkFlags, 0)
		if err == nil {
			stack, rest = append(stack, fd), rest[1:]
			continue
		}
		target, isLink := readlink(top, element)
		if !isLink {
			return err
		}
		if path.IsAbs(target) {
			return ErrEscapes
		}
		if links++; links > maxLinks {
			return unix.ELOOP
		}
		rest = append(strings.Split(target, "/"), rest[1:]...)
	}
	if rest[0] == ".." {
		return ErrEscapes
	}
	return f(stack[len(stack)-1], rest[0])
}

func openat(dir int, name string, flags int, perm uint32) (int, error) {
	return ignoringEINTR(func() (int, error) { return unix.Openat(dir, name, flags, perm) })
}

func readlink(dir int, name string) (target string, isLink bool) {
	buf := make([]byte, unix.PathMax)
	n, err := unix.Readlinkat(dir, name, buf)
	return string(buf[:max(n, 0)]), err == nil
}

// OpenRoot opens a directory below as a Root.
func (r *Root) OpenRoot(name string) (*Root, error) {
	var below *Root
	err := r.withParent("open", name, true, func(dir int, _ string) error {
		fd, err := openat(dir, ".", walkFlags, 0)
		below = &Root{fd}
		return err
	})
	if err != nil {
		return nil, err
	}
	return below, nil
}

// OpenDir opens a directory for reading.
func (r *Root) OpenDir(name string) (*os.File, error) {
	var f *os.File
	err := r.withParent("open", name, true, func(dir int, _ string) error {
		fd, err := openat(dir, ".", readFlags, 0)
		if err == nil {
			f = os.NewFile(uintptr(fd), name)
		}
		return err
	})
	return f, err
}

// OpenFile opens a file like os.OpenFile. A symbolic link gives ELOOP.
func (r *Root) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	var f *os.File
	err := r.withParent("open", name, false, func(dir int, base string) error {
		if flag&unix.O_DIRECTORY != 0 {
			return unix.EINVAL // see the package comment; use OpenDir
		}
		fd, err := openat(dir, base, flag|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NOCTTY, uint32(perm.Perm()))
		if err == nil {
			f = os.NewFile(uintptr(fd), name)
		}
		return err
	})
	return f, err
}

// Lstat describes a file. Its Sys is a *syscall.Stat_t.
func (r *Root) Lstat(name string) (fs.FileInfo, error) {
	var stat unix.Stat_t
	err := r.withParent("lstat", name, false, func(dir int, base string) error {
		return unix.Fstatat(dir, base, &stat, unix.AT_SYMLINK_NOFOLLOW)
	})
	if err != nil {
		return nil, err
	}
	return newFileInfo(path.Base(name), &stat), nil
}

// Readlink returns where a symbolic link leads.
func (r *Root) Readlink(name string) (target string, err error) {
	err = r.withParent("readlink", name, false, func(dir int, base string) error {
		buf := make([]byte, unix.PathMax)
		n, err := unix.Readlinkat(dir, base, buf)
		target = string(buf[:max(n, 0)])
		return err
	})
	return target, err
}

// Mkdir creates a directory.
func (r *Root) Mkdir(name string, perm fs.FileMode) error {
	return r.withParent("mkdir", name, false, func(dir int, base string) error {
		return unix.Mkdirat(dir, base, uint32(perm.Perm()))
	})
}

// Lchown changes the owner and group of a file. It does not follow links.
func (r *Root) Lchown(name string, uid, gid int) error {
	return r.withParent("chown", name, false, func(dir int, base string) error {
		return unix.Fchownat(dir, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// Chmod changes the mode of a file that is not a symbolic link. On kernels before Linux 6.6 it may follow a link that
// takes the file's place at that moment.
func (r *Root) Chmod(name string, mode fs.FileMode) error {
	return r.withParent("chmod", name, false, func(dir int, base string) error {
		err := unix.Fchmodat(dir, base, uint32(mode.Perm()), unix.AT_SYMLINK_NOFOLLOW)
		if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		if _, isLink := readlink(dir, base); isLink {
			return unix.ELOOP
		}
		return unix.Fchmodat(dir, base, uint32(mode.Perm()), 0)
	})
}

// OpenDirAt opens a directory in another one for reading, and refuses a link. The methods of Root do this for each
// directory on the way.
func OpenDirAt(dir int, name string) (int, error) {
	fd, err := openat(dir, name, walkFlags, 0)
	if err != nil {
		return -1, err
	}
	defer func() { _ = unix.Close(fd) }() // opened only for lookups
	return openat(fd, ".", readFlags, 0)
}

// Rename moves a file to another Root or the same.
func (r *Root) Rename(name string, to *Root, newName string) error {
	return r.withParent("rename", name, false, func(dir int, base string) error {
		return to.walkToParent(newName, false, func(toDir int, toBase string) error {
			return unix.Renameat(dir, base, toDir, toBase)
		})
	})
}

// Remove removes a file or an empty directory.
func (r *Root) Remove(name string) error {
	return r.withParent("remove", name, false, removeEntry)
}

// RemoveAll removes a file, or a directory with everything in it. A missing file is not an error.
func (r *Root) RemoveAll(name string) error {
	if path.Clean(name) == "." {
		return &fs.PathError{Op: "remove", Path: name, Err: unix.EINVAL}
	}
	err := r.withParent("remove", name, false, removeAll)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

func removeEntry(dir int, name string) error {
	err := unix.Unlinkat(dir, name, 0)
	if err == nil || errors.Is(err, unix.ENOENT) {
		return err
	}
	dirErr := unix.Unlinkat(dir, name, unix.AT_REMOVEDIR)
	if errors.Is(dirErr, unix.ENOTDIR) {
		return err
	}
	return dirErr
}

func removeAll(dir int, name string) error {
	for {
		err := removeEntry(dir, name)
		if !errors.Is(err, unix.ENOTEMPTY) && !errors.Is(err, unix.EEXIST) {
			return err
		}
		if err := removeContents(dir, name); err != nil {
			return err
		}
	}
}

// removeContents removes the content of a directory.
func removeContents(parent int, name string) error {
	dir, err := OpenDirAt(parent, name)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(dir), name)
	defer f.Close()
	for {
		names, err := f.Readdirnames(batch)
		for _, n := range names {
			if err := removeAll(dir, n); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// ReadNames returns up to limit names of a directory, unsorted.
func (r *Root) ReadNames(name string, limit int) ([]string, error) {
	f, err := r.OpenDir(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	names, err := f.Readdirnames(limit)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	return names, err
}
