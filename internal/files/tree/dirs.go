package tree

import (
	"errors"
	"hash/maphash"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

const (
	// permBits are the mode bits that are kept by default.
	permBits    = 0o777
	specialBits = unix.S_ISUID | unix.S_ISGID | unix.S_ISVTX
	// ownerBits are the permissions that the process needs to fill a directory.
	ownerBits = 0o700
	// maxFinished bounds the memory for finished directories, to about 40 MB.
	maxFinished = 1 << 20
	// maxTries is how often an entry is created again if other processes create it at the same time.
	maxTries = 8
)

// dirs are the open directories on the way to the current member, the target first.
//
// A directory gets its mode and time when the stream has left it, so that it can be filled whatever its mode. That
// takes memory only for one entry for each level. A stream may return to a directory, which changes its time again: a
// directory that is known to be finished then keeps the time that it had. That takes a hash of 64 bits for each
// finished directory, up to a million of them; a collision would leave one time wrong.
type dirs struct {
	root     *beneath.Root
	owner    *Owner // nil: new files need no change of owner
	stack    []level
	finished map[uint64]struct{}
	seed     maphash.Seed
}

// level is one open directory.
type level struct {
	path   string // clean; "." for the target
	fd     int
	file   *os.File // owner of the descriptor, if opened by the root
	linked bool     // reached through a link, so its real depth is unknown
	made   bool     // created by this stream
	meta   *meta    // mode and time to set at the end, if any

	// granted and denied are permission bits that files created here did get and did not get, because of the umask
	// and default ACLs.
	granted, denied uint32
}

// meta is the stored mode and time of a file.
type meta struct {
	mode  uint32 // permission and special bits
	mtime unix.Timespec
}

func openDirs(root *beneath.Root, owner *Owner) (*dirs, error) {
	top, err := root.OpenDir(".")
	if err != nil {
		return nil, fileError("open", ".", err)
	}
	if owner != nil && owner.UID == os.Geteuid() && owner.GID == os.Getegid() {
		owner = nil
	}
	return &dirs{
		root: root, owner: owner, seed: maphash.MakeSeed(), finished: map[uint64]struct{}{},
		stack: []level{{path: ".", fd: int(top.Fd()), file: top}},
	}, nil
}

// innermost returns the innermost open directory.
func (d *dirs) innermost() *level { return &d.stack[len(d.stack)-1] }

// depth returns how many levels below the target the innermost directory certainly is.
func (d *dirs) depth() int {
	if d.innermost().linked {
		return 0
	}
	return len(d.stack) - 1
}

// contains reports whether path is the level's directory or below it.
func (l *level) contains(path string) bool {
	if l.path == "." || l.path == path {
		return true
	}
	return len(path) > len(l.path) && path[len(l.path)] == '/' && strings.HasPrefix(path, l.path)
}

// enterDir opens a directory and creates missing ones on the way. The result is valid until the next call.
func (d *dirs) enterDir(path string) (*level, error) {
	for !d.innermost().contains(path) {
		if err := d.leaveDir(); err != nil {
			return nil, err
		}
	}
	for d.innermost().path != path {
		from := 0
		if at := d.innermost().path; at != "." {
			from = len(at) + 1
		}
		end := len(path)
		if i := strings.IndexByte(path[from:], '/'); i >= 0 {
			end = from + i
		}
		if err := d.enterChild(path[:end], path[from:end]); err != nil {
			return nil, err
		}
	}
	return d.innermost(), nil
}

// enterChild opens a directory that the stream has not described here, or creates it. Another process may create it
// at the same time.
func (d *dirs) enterChild(path, name string) error {
	settled := d.isFinished(path)
	var err error
	for range maxTries {
		var l level
		if l, err = d.openDir(path, name, settled); err == nil {
			return d.pushExisting(l, settled)
		}
		if isNoDir(err) {
			return d.followLink(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = d.createDir(path, name, 0o755)
		}
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err != nil {
		return fileError("open", path, err)
	}
	return nil
}

// pushExisting enters a directory that existed.
func (d *dirs) pushExisting(l level, settled bool) error {
	d.stack = append(d.stack, l)
	if !settled {
		return nil
	}
	_, err := d.innermost().recordMeta()
	return err
}

// makeDescribed creates a directory, or enters an existing one, and records the mode and time that it gets when the
// stream leaves it. Any other file in its place is removed.
func (d *dirs) makeDescribed(path string, m meta) error {
	if path == "." {
		if _, err := d.enterDir(path); err != nil {
			return err
		}
		return d.innermost().setMeta(m)
	}
	parent, name := splitName(path)
	at, err := d.enterDir(parent)
	if err != nil {
		return err
	}
	err = d.createDir(path, name, ownerBits)
	if errors.Is(err, fs.ErrExist) {
		var l level
		if l, err = d.openDir(path, name, true); err == nil {
			d.stack = append(d.stack, l)
			return d.innermost().setMeta(m)
		}
		if isNoDir(err) {
			if err = unlinkAt(at.fd, name); err == nil {
				err = d.createDir(path, name, ownerBits)
			}
		}
	}
	if err != nil {
		return fileError("create", path, err)
	}
	d.innermost().meta = &m
	return nil
}

// createDir creates a directory and enters it.
func (d *dirs) createDir(path, name string, mode uint32) error {
	at := d.innermost()
	if err := retryInterrupted(func() error { return unix.Mkdirat(at.fd, name, mode) }); err != nil {
		return err
	}
	l, err := d.openDir(path, name, false)
	if err != nil {
		return err
	}
	l.made = true
	d.stack = append(d.stack, l)
	return nil
}

// openDir opens a directory in the innermost one, and refuses a link. With force, a directory of this user is opened
// whatever its mode, which is recorded in the level's meta.
func (d *dirs) openDir(path, name string, force bool) (level, error) {
	l := level{path: path, linked: d.innermost().linked}
	var err error
	l.fd, err = beneath.OpenDirAt(d.innermost().fd, name)
	if force && errors.Is(err, fs.ErrPermission) {
		return d.openForbidden(l)
	}
	return l, err
}

// openForbidden opens a directory whose mode forbids it. It uses the root, because changing the mode of a name could
// follow a link.
func (d *dirs) openForbidden(l level) (level, error) {
	info, err := d.root.Lstat(l.path)
	if err != nil {
		return l, err
	}
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok || !info.IsDir() || int(st.Uid) != os.Geteuid() {
		return l, fs.ErrPermission
	}
	l.meta = &meta{mode: st.Mode & (permBits | specialBits), mtime: unix.Timespec(st.Mtim)}
	if err := d.root.Chmod(l.path, info.Mode()|ownerBits); err != nil {
		return l, err
	}
	l.file, err = d.root.OpenDir(l.path)
	if err != nil {
		return l, err
	}
	l.fd = int(l.file.Fd())
	return l, nil
}

// followLink opens the directory that a link leads to, if it is in the tree. The root checks that by resolving the
// path from the top.
func (d *dirs) followLink(path string) error {
	f, err := d.root.OpenDir(path)
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "open %s: not a directory, or a link that does not lead to a directory of the tree: %w", quoteName(path), err)
	}
	d.stack = append(d.stack, level{path: path, fd: int(f.Fd()), file: f, linked: true})
	return nil
}

// recordMeta records the current mode and time of the directory, which are set again at the end, and makes the
// directory writable until then.
func (l *level) recordMeta() (*meta, error) {
	if l.meta != nil {
		return l.meta, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(l.fd, &st); err != nil {
		return nil, fileError("stat", l.path, err)
	}
	l.meta = &meta{mode: st.Mode & (permBits | specialBits), mtime: st.Mtim}
	if st.Mode&ownerBits == ownerBits || int(st.Uid) != os.Geteuid() {
		return l.meta, nil
	}
	if err := unix.Fchmod(l.fd, l.meta.mode|ownerBits); err != nil {
		return nil, fileError("change the mode of", l.path, err)
	}
	return l.meta, nil
}

// setMeta sets the mode and time for an existing directory. It keeps the directory's special bits.
func (l *level) setMeta(m meta) error {
	found, err := l.recordMeta()
	if err != nil {
		return err
	}
	m.mode |= found.mode & specialBits
	l.meta = &m
	return nil
}

// leaveDir finishes the innermost directory and closes it.
func (d *dirs) leaveDir() error {
	l := d.innermost()
	err := d.applyMeta(l)
	if l.file != nil {
		_ = l.file.Close() // only read
	} else {
		_ = unix.Close(l.fd) // only read
	}
	d.stack = d.stack[:len(d.stack)-1]
	return err
}

// close finishes and closes all directories. It returns the first error.
func (d *dirs) close() error {
	var first error
	for len(d.stack) > 0 {
		if err := d.leaveDir(); first == nil {
			first = err
		}
	}
	return first
}

// applyMeta sets the time, owner and mode of a directory in which nothing more is created. The mode is last: it may
// forbid the others, and a new owner clears special bits.
func (d *dirs) applyMeta(l *level) error {
	if l.meta != nil {
		if err := setTime(l.fd, ".", l.meta.mtime); err != nil {
			return fileError("set the time of", l.path, err)
		}
	}
	if l.made && d.owner != nil {
		if err := unix.Fchown(l.fd, d.owner.UID, d.owner.GID); err != nil {
			return fileError("set the owner of", l.path, err)
		}
	}
	if l.meta == nil {
		return nil
	}
	if err := unix.Fchmod(l.fd, l.meta.mode); err != nil {
		return fileError("set the mode of", l.path, err)
	}
	if len(d.finished) < maxFinished {
		d.finished[maphash.String(d.seed, l.path)] = struct{}{}
	}
	return nil
}

func (d *dirs) isFinished(path string) bool {
	if len(d.finished) == 0 {
		return false
	}
	_, ok := d.finished[maphash.String(d.seed, path)]
	return ok
}

// isNoDir reports whether opening a directory found another kind of file, such as a link. Which of the errors a link
// gives depends on the kernel.
func isNoDir(err error) bool {
	return errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// setTime sets the modification time of a file, or of a link itself.
func setTime(dir int, name string, mtime unix.Timespec) error {
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, mtime}
	return unix.UtimesNanoAt(dir, name, times, unix.AT_SYMLINK_NOFOLLOW)
}

func unlinkAt(dir int, name string) error {
	return retryInterrupted(func() error { return unix.Unlinkat(dir, name, 0) })
}
