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
	// permBits are what a mode keeps without being asked.
	permBits    = 0o777
	specialBits = unix.S_ISUID | unix.S_ISGID | unix.S_ISVTX
	// ownerBits are what whoever fills a directory needs.
	ownerBits = 0o700
	// maxSettled bounds the memory for directories that are done, to about 40 MB.
	maxSettled = 1 << 20
	// maxTries is how often something is made while others make it too.
	maxTries = 8
)

// dirs are the directories on the way to the present member, kept open, the
// target first.
//
// A directory gets its mode and time when the stream has left it, so that it can
// be filled whatever its mode. What must be remembered for that is one level of
// depth each. A stream may come back to a directory, which changes its time
// again: a directory that is known to be settled then gets the time back that it
// is found with. To know that takes a hash of 64 bits for each settled
// directory, for the first million of them; if one is mistaken for another, one
// time is off.
type dirs struct {
	root    *beneath.Root
	owner   *Owner // nil: no need to give what is made to somebody
	stack   []level
	settled map[uint64]struct{}
	seed    maphash.Seed
}

// level is one open directory.
type level struct {
	path   string // clean; "." for the target
	fd     int
	file   *os.File // what the descriptor belongs to, if it came from the root
	linked bool     // reached through a link: its real depth is unknown
	made   bool     // by this stream
	meta   *meta    // what it gets at the end, if anything

	// granted and denied are permission bits that files made here did get and
	// did not: the process's umask and default ACLs, learned without asking.
	granted, denied uint32
}

// meta is what is kept of a file.
type meta struct {
	mode  uint32 // permission and special bits
	mtime unix.Timespec
}

func openDirs(root *beneath.Root, owner *Owner) (*dirs, error) {
	top, err := root.OpenDir(".")
	if err != nil {
		return nil, failed("open", ".", err)
	}
	if owner != nil && owner.UID == os.Geteuid() && owner.GID == os.Getegid() {
		owner = nil
	}
	return &dirs{
		root: root, owner: owner, seed: maphash.MakeSeed(), settled: map[uint64]struct{}{},
		stack: []level{{path: ".", fd: int(top.Fd()), file: top}},
	}, nil
}

// here is the innermost open directory.
func (d *dirs) here() *level { return &d.stack[len(d.stack)-1] }

// depth is how many directories below the target the innermost one is for sure.
func (d *dirs) depth() int {
	if d.here().linked {
		return 0
	}
	return len(d.stack) - 1
}

// holds reports whether path is the level's directory or below it.
func (l *level) holds(path string) bool {
	if l.path == "." || l.path == path {
		return true
	}
	return len(path) > len(l.path) && path[len(l.path)] == '/' && strings.HasPrefix(path, l.path)
}

// enter goes to a directory, making what is missing on the way. The result is
// good until the next call.
func (d *dirs) enter(path string) (*level, error) {
	for !d.here().holds(path) {
		if err := d.leave(); err != nil {
			return nil, err
		}
	}
	for d.here().path != path {
		from := 0
		if at := d.here().path; at != "." {
			from = len(at) + 1
		}
		end := len(path)
		if i := strings.IndexByte(path[from:], '/'); i >= 0 {
			end = from + i
		}
		if err := d.descend(path[:end], path[from:end]); err != nil {
			return nil, err
		}
	}
	return d.here(), nil
}

// descend opens a directory that the stream does not describe at this place, or
// makes it. Another stream may make it at the same moment.
func (d *dirs) descend(path, name string) error {
	settled := d.isSettled(path)
	var err error
	for range maxTries {
		var l level
		if l, err = d.open(path, name, settled); err == nil {
			return d.resume(l, settled)
		}
		if isNoDir(err) {
			return d.follow(path)
		}
		if errors.Is(err, fs.ErrNotExist) {
			err = d.create(path, name, 0o755)
		}
		if !errors.Is(err, fs.ErrExist) {
			break
		}
	}
	if err != nil {
		return failed("open", path, err)
	}
	return nil
}

// resume goes into a directory that was there.
func (d *dirs) resume(l level, settled bool) error {
	d.stack = append(d.stack, l)
	if !settled {
		return nil
	}
	_, err := d.here().keep()
	return err
}

// describe makes a directory, or takes the one that is there, and notes what it
// gets when the stream leaves it. Anything else in its place is removed.
func (d *dirs) describe(path string, m meta) error {
	if path == "." {
		if _, err := d.enter(path); err != nil {
			return err
		}
		return d.here().adopt(m)
	}
	parent, name := split(path)
	at, err := d.enter(parent)
	if err != nil {
		return err
	}
	err = d.create(path, name, ownerBits)
	if errors.Is(err, fs.ErrExist) {
		var l level
		if l, err = d.open(path, name, true); err == nil {
			d.stack = append(d.stack, l)
			return d.here().adopt(m)
		}
		if isNoDir(err) {
			if err = unlink(at.fd, name); err == nil {
				err = d.create(path, name, ownerBits)
			}
		}
	}
	if err != nil {
		return failed("make", path, err)
	}
	d.here().meta = &m
	return nil
}

// create makes a directory and goes into it.
func (d *dirs) create(path, name string, mode uint32) error {
	at := d.here()
	if err := retry(func() error { return unix.Mkdirat(at.fd, name, mode) }); err != nil {
		return err
	}
	l, err := d.open(path, name, false)
	if err != nil {
		return err
	}
	l.made = true
	d.stack = append(d.stack, l)
	return nil
}

// open opens a directory in the innermost one, and no link. With force, one of
// our own is opened whatever its mode, which is kept in the level's meta.
func (d *dirs) open(path, name string, force bool) (level, error) {
	l := level{path: path, linked: d.here().linked}
	var err error
	l.fd, err = beneath.OpenDirAt(d.here().fd, name)
	if force && errors.Is(err, fs.ErrPermission) {
		return d.openForbidden(l)
	}
	return l, err
}

// openForbidden opens a directory that only its mode keeps us from. By way of
// the root, as changing the mode of a name could follow a link.
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

// follow opens the directory that a link stands for, if it is one of the tree.
// Whether it is, the root decides, by resolving the path from the top.
func (d *dirs) follow(path string) error {
	f, err := d.root.OpenDir(path)
	if err != nil {
		return sandpit.Errorf(sandpit.Invalid, "open %s: a file, or a link to no directory of the tree: %w", quote(path), err)
	}
	d.stack = append(d.stack, level{path: path, fd: int(f.Fd()), file: f, linked: true})
	return nil
}

// keep notes the mode and time that the directory has now, to be given again at
// the end, and lets us fill it meanwhile.
func (l *level) keep() (*meta, error) {
	if l.meta != nil {
		return l.meta, nil
	}
	var st unix.Stat_t
	if err := unix.Fstat(l.fd, &st); err != nil {
		return nil, failed("look at", l.path, err)
	}
	l.meta = &meta{mode: st.Mode & (permBits | specialBits), mtime: st.Mtim}
	if st.Mode&ownerBits == ownerBits || int(st.Uid) != os.Geteuid() {
		return l.meta, nil
	}
	if err := unix.Fchmod(l.fd, l.meta.mode|ownerBits); err != nil {
		return nil, failed("change the mode of", l.path, err)
	}
	return l.meta, nil
}

// adopt has a directory that was there get a mode and time. Special bits of its
// own stay.
func (l *level) adopt(m meta) error {
	found, err := l.keep()
	if err != nil {
		return err
	}
	m.mode |= found.mode & specialBits
	l.meta = &m
	return nil
}

// leave settles the innermost directory and closes it.
func (d *dirs) leave() error {
	l := d.here()
	err := d.settle(l)
	if l.file != nil {
		_ = l.file.Close() // only read
	} else {
		_ = unix.Close(l.fd) // only read
	}
	d.stack = d.stack[:len(d.stack)-1]
	return err
}

// close settles and closes all. It returns the first error.
func (d *dirs) close() error {
	var first error
	for len(d.stack) > 0 {
		if err := d.leave(); first == nil {
			first = err
		}
	}
	return first
}

// settle gives a directory what it gets when nothing more is made in it. The
// mode comes last: it may forbid the rest, and a new owner takes bits off.
func (d *dirs) settle(l *level) error {
	if l.meta != nil {
		if err := setTime(l.fd, ".", l.meta.mtime); err != nil {
			return failed("set the time of", l.path, err)
		}
	}
	if l.made && d.owner != nil {
		if err := unix.Fchown(l.fd, d.owner.UID, d.owner.GID); err != nil {
			return failed("set the owner of", l.path, err)
		}
	}
	if l.meta == nil {
		return nil
	}
	if err := unix.Fchmod(l.fd, l.meta.mode); err != nil {
		return failed("set the mode of", l.path, err)
	}
	if len(d.settled) < maxSettled {
		d.settled[maphash.String(d.seed, l.path)] = struct{}{}
	}
	return nil
}

func (d *dirs) isSettled(path string) bool {
	if len(d.settled) == 0 {
		return false
	}
	_, ok := d.settled[maphash.String(d.seed, path)]
	return ok
}

// isNoDir reports whether opening a directory found something else, a link for
// instance; which of the two errors a link gives depends on the kernel.
func isNoDir(err error) bool {
	return errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP)
}

// setTime sets the time at which a file was changed, of a link itself if it is
// one.
func setTime(dir int, name string, mtime unix.Timespec) error {
	times := []unix.Timespec{{Nsec: unix.UTIME_OMIT}, mtime}
	return unix.UtimesNanoAt(dir, name, times, unix.AT_SYMLINK_NOFOLLOW)
}

func unlink(dir int, name string) error {
	return retry(func() error { return unix.Unlinkat(dir, name, 0) })
}
