package watch

import (
	"errors"
	"io"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	sandpit "github.com/sandpit-dev/sandpit"
)

const (
	// watchedEvents are the requested events. IN_UNMOUNT, IN_IGNORED and IN_Q_OVERFLOW come unrequested.
	watchedEvents = unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_MODIFY | unix.IN_ATTRIB |
		unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR

	// pathFlags open a directory to look up names in it, readFlags to read it. Only pathFlags avoid symbolic links:
	// without O_PATH, gVisor's kernel follows a link that is opened as a directory, even with O_NOFOLLOW.
	pathFlags = unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC | unix.O_NOFOLLOW
	readFlags = unix.O_RDONLY | unix.O_DIRECTORY | unix.O_CLOEXEC

	// batch is how many names of a directory are read at once.
	batch = 1000
)

var (
	errRootMoved = errors.New("the watched directory is no longer at its path")
	errMoved     = errors.New("a directory is no longer where it was")
)

// directory is an open directory. It must be closed soon: the kernel does not report the removal of an open directory
// to its watch.
type directory struct {
	fd   int
	path string // a path to it that no rename changes
	file *os.File
	id   identity
}

// openChild opens the directory name, which is not a symbolic link, in the directory at.
func openChild(at int, name string) (*directory, error) {
	fd, err := openat(at, name, pathFlags)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return openDirectory(fd, ".")
}

// openDirectory opens name in the directory at, or a path if at is AT_FDCWD.
func openDirectory(at int, name string) (*directory, error) {
	fd, err := openat(at, name, readFlags)
	if err != nil {
		return nil, err
	}
	d := &directory{fd: fd, path: "/proc/self/fd/" + strconv.Itoa(fd)}
	// The file uses this name to look up its entries if the file system does not report their types.
	d.file = os.NewFile(uintptr(fd), d.path)
	var s unix.Stat_t
	if err := unix.Fstat(fd, &s); err != nil {
		d.closeFile()
		return nil, err
	}
	d.id = identityOf(&s)
	return d, nil
}

func openat(at int, name string, flags int) (int, error) {
	for {
		fd, err := unix.Openat(at, name, flags, 0)
		if !errors.Is(err, unix.EINTR) {
			return fd, err
		}
	}
}

func identityOf(s *unix.Stat_t) identity { return identity{dev: s.Dev, ino: s.Ino} }

func (d *directory) closeFile() {
	_ = d.file.Close() // it was only read
}

// watchRoot sets the root and watches it, with all directories below if recursive.
func (t *tree) watchRoot(dir string, recursive bool) error {
	d, err := openDirectory(unix.AT_FDCWD, dir)
	if err != nil {
		return err
	}
	defer d.closeFile()
	if t.path, err = os.Readlink(d.path); err != nil {
		return sandpit.Errorf(sandpit.Unsupported, "find the path of the directory: %w", err) // no /proc
	}
	wd, err := t.addWatch(d)
	if err != nil {
		return err
	}
	t.recursive = recursive
	t.root = &node{wd: wd, id: d.id}
	t.nodes[wd] = t.root
	if recursive {
		stopped := t.stopped
		t.stopped = func() bool { return t.failed != nil }
		t.scanDir(d, t.root, false)
		t.stopped = stopped
	}
	return t.failed
}

// rescan scans the whole tree again after events were lost.
func (t *tree) rescan() {
	if !t.recursive {
		return
	}
	fd, err := t.rootDescriptor()
	if err != nil {
		t.recordFailure(err)
		return
	}
	d, err := openDirectory(fd, ".")
	_ = unix.Close(fd)
	if err != nil {
		t.recordFailure(err)
		return
	}
	defer d.closeFile()
	t.epoch++
	t.missed = nil
	t.root.epoch = t.epoch
	t.scanDir(d, t.root, false)
	for _, n := range t.nodes {
		if n.epoch != t.epoch && !t.stopped() {
			t.forgetNode(n)
		}
	}
}

// scanDir reads d, the directory of n, once, and watches the directories in it and below. With report, it reports
// everything as created.
func (t *tree) scanDir(d *directory, n *node, report bool) {
	for _, name := range t.listDirs(d, n, report) {
		t.listed--
		if t.stopped() {
			continue
		}
		child, err := openChild(d.fd, name)
		if err != nil {
			t.recordFailure(err)
			continue
		}
		t.addDir(child, n, name, report)
		child.closeFile()
	}
}

// listDirs returns the names of the directories in d, up to the limit of watches. With report, it reports everything in
// d as created.
func (t *tree) listDirs(d *directory, n *node, report bool) (dirs []string) {
	for {
		entries, err := d.file.ReadDir(batch)
		for _, e := range entries {
			if report && (e.IsDir() || !isTemp(e.Name())) {
				t.reportFound(n, e.Name())
			}
			if !e.IsDir() {
				continue
			}
			if t.listed >= t.limits.directories {
				t.recordFailure(errTooMany)
				continue
			}
			dirs = append(dirs, e.Name())
			t.listed++
		}
		if err == nil && !t.stopped() {
			continue
		}
		if err != nil && !errors.Is(err, io.EOF) {
			// File systems return different errors for a removed directory.
			if there, _ := t.isInPlace(n); there {
				t.recordFailure(err)
			}
		}
		break
	}
	if len(n.found) > 0 {
		n.barrier = t.newBarrier()
		t.withBarrier = append(t.withBarrier, n)
	}
	return dirs
}

// queuedBytes returns the size of the events that are queued in the kernel.
func (t *tree) queuedBytes() int64 {
	n, err := unix.IoctlGetInt(t.inotify, unix.TIOCINQ) // the same as FIONREAD
	if err != nil {
		return 0 // cannot happen for our own descriptor
	}
	return int64(n)
}

// addWatch returns the watch of d, which inotify creates if d has none.
func (t *tree) addWatch(d *directory) (wd int32, err error) {
	n, err := unix.InotifyAddWatch(t.inotify, d.path, watchedEvents)
	return int32(n), err //nolint:gosec // the kernel numbers them with 32 bits
}

// removeWatch removes a watch. It fails only if the kernel has already removed it.
func (t *tree) removeWatch(wd int32) {
	_, _ = unix.InotifyRmWatch(t.inotify, uint32(wd)) //nolint:gosec // the same 32 bits
}

// openNode opens the directory name in n, from the root and through no symbolic link. errMoved: n is elsewhere by
// now.
func (t *tree) openNode(n *node, name string) (*directory, error) {
	fd, err := t.descriptorOf(n)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	return openChild(fd, name)
}

// isInPlace reports whether n is still at its recorded name. errMoved: its recorded parent is elsewhere by now.
func (t *tree) isInPlace(n *node) (bool, error) {
	if n.parent == nil {
		return n == t.root, nil
	}
	fd, err := t.descriptorOf(n.parent)
	if err != nil {
		return false, err
	}
	defer unix.Close(fd)
	var s unix.Stat_t
	err = unix.Fstatat(fd, n.name, &s, unix.AT_SYMLINK_NOFOLLOW)
	return err == nil && identityOf(&s) == n.id, nil
}

// descriptorOf returns an O_PATH descriptor of n, which must not be detached. errMoved: n is elsewhere by now.
func (t *tree) descriptorOf(n *node) (fd int, err error) {
	var names []string
	for m := n; m.parent != nil; m = m.parent {
		names = append(names, m.name)
	}
	if fd, err = t.rootDescriptor(); err != nil {
		return -1, err
	}
	for _, name := range slices.Backward(names) {
		next, err := openat(fd, name, pathFlags)
		_ = unix.Close(fd) // an O_PATH descriptor
		switch {
		case isGone(err), errors.Is(err, unix.EACCES):
			return -1, errMoved
		case err != nil:
			return -1, err
		}
		fd = next
	}
	if !isNode(fd, n) {
		_ = unix.Close(fd)
		return -1, errMoved
	}
	return fd, nil
}

func (t *tree) rootDescriptor() (fd int, err error) {
	fd, err = openat(unix.AT_FDCWD, t.path, pathFlags)
	switch {
	case isGone(err), errors.Is(err, unix.EACCES):
		return -1, errRootMoved
	case err != nil:
		return -1, err
	case !isNode(fd, t.root):
		_ = unix.Close(fd)
		return -1, errRootMoved
	}
	return fd, nil
}

// isNode reports whether the descriptor refers to n.
func isNode(fd int, n *node) bool {
	var s unix.Stat_t
	return unix.Fstat(fd, &s) == nil && identityOf(&s) == n.id
}
