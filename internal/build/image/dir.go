package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// openDir returns the image of a directory. The image is built again if stat returns
// something else for any file in it; contents are not compared.
func (s *Store) openDir(ctx context.Context, dir string, p Progress) (*os.File, error) {
	root, err := s.walkDir(ctx, dir)
	if err != nil {
		return nil, err
	}
	return s.builder.makeTree(ctx, root, note{Kind: KindDirectory, Source: dir}, p)
}

// eachFile calls f for every regular file, once per name.
func (n *node) eachFile(f func(*node)) {
	if n.kind() == unix.S_IFREG {
		f(n)
	}
	for _, child := range n.children {
		child.eachFile(f)
	}
}

// fetchContents writes the contents of all regular files.
func (w *writer) fetchContents(n *node, m *countingReader) error {
	if n.kind() == unix.S_IFREG && n.from != nil {
		if err := w.fetchFile(n, m); err != nil {
			return err
		}
		n.from = nil // hard links share the contents
	}
	for _, name := range n.childNames() {
		if err := w.fetchContents(n.children[name], m); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) fetchFile(n *node, m *countingReader) error {
	from := n.from
	if n.size == 0 {
		return nil
	}
	var err error
	if from.path == "" {
		m.r = strings.NewReader(from.text)
		n.block, _, err = w.writeData(m)
		return err
	}
	// The path may be another file by now, which checkUnchanged detects.
	f, err := os.OpenFile(from.path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return readError(from.path, err)
	}
	defer func() { _ = f.Close() }() // only read
	if err = from.checkUnchanged(f); err != nil {
		return err
	}
	m.r = io.LimitReader(f, n.size)
	if n.block, _, err = w.writeData(m); err != nil {
		return err
	}
	return from.checkUnchanged(f)
}

// checkUnchanged returns an error if f is another file than before, or has changed.
func (s *source) checkUnchanged(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return &fs.PathError{Op: "stat", Path: s.path, Err: err}
	}
	if identityOf(&st) != s.id {
		return errChanged(s.path)
	}
	return nil
}

func errChanged(path string) error {
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.Unavailable, "%s changed while it was read", path),
		"try again when no program writes to it")
}

func readError(path string, err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ELOOP) || errors.Is(err, unix.ENOTDIR) {
		return errChanged(path)
	}
	if errors.Is(err, fs.ErrPermission) {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "%s cannot be read: %w", path, withoutPath(err)),
			"make it readable, remove it, or run sandpit as a user with read permission")
	}
	return fmt.Errorf("read %s: %w", path, withoutPath(err))
}

// walker reads the metadata of every file in a directory.
type walker struct {
	ctx     context.Context //nolint:containedctx // lives as long as one call
	top     string
	cache   identity // the store's own directory
	left    limits
	files   map[fileID]*node // files with hard links
	virtual map[uint64]bool  // by device: whether the file system is virtual
}

type fileID struct{ dev, ino uint64 }

// walkDir returns the tree of a directory without contents.
func (s *Store) walkDir(ctx context.Context, dir string) (*node, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	w := &walker{ctx: ctx, top: abs, left: s.builder.limits, files: map[fileID]*node{}, virtual: map[uint64]bool{}}
	var st unix.Stat_t
	if err = unix.Stat(s.cache.dir, &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: s.cache.dir, Err: err}
	}
	w.cache = identityOf(&st)
	f, err := os.OpenFile(abs, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, readError(abs, err)
	}
	defer func() { _ = f.Close() }() // only read
	if err = unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, &fs.PathError{Op: "stat", Path: abs, Err: err}
	}
	root := newNode(&st)
	return root, w.addDir(f, "", root)
}

// newNode returns a node with a file's metadata and no contents.
func newNode(st *unix.Stat_t) *node {
	n := &node{
		mode: st.Mode, uid: st.Uid, gid: st.Gid, mtime: stampOf(st.Mtim),
		from: &source{id: identityOf(st)},
	}
	if n.isDir() {
		n.children = map[string]*node{}
	}
	return n
}

// addDir adds the entries of the open directory f, which is at path below the top.
func (w *walker) addDir(f *os.File, path string, to *node) error {
	if err := w.ctx.Err(); err != nil {
		return err
	}
	names, err := f.Readdirnames(-1)
	if err != nil {
		return readError(w.fullPath(path), err)
	}
	slices.Sort(names) // for deterministic errors
	for _, name := range names {
		full := filepath.Join(path, name)
		if err := checkName(name); err != nil { // some file systems have longer names
			return fmt.Errorf("in %s: %w", w.fullPath(path), err)
		}
		var st unix.Stat_t
		if err := unix.Fstatat(int(f.Fd()), name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
			return readError(w.fullPath(full), err)
		}
		n, err := w.newFileNode(f, full, name, &st)
		if err != nil {
			return err
		}
		if n != nil {
			to.children[name] = n
		}
	}
	return nil
}

func (w *walker) fullPath(path string) string { return filepath.Join(w.top, path) }

// newFileNode returns the node of one file, or nil if images do not contain this type.
func (w *walker) newFileNode(dir *os.File, path, name string, st *unix.Stat_t) (*node, error) {
	if kind := st.Mode & unix.S_IFMT; kind == unix.S_IFSOCK || kind == unix.S_IFCHR || kind == unix.S_IFBLK {
		return nil, nil // left out
	}
	id := fileID{st.Dev, st.Ino}
	if known := w.files[id]; known != nil {
		return known, w.left.countFile(path, known, 0)
	}
	n := newNode(st)
	if err := w.left.countFile(path, n, st.Size); err != nil {
		return nil, err
	}
	var err error
	switch n.kind() {
	case unix.S_IFDIR:
		return n, w.enterDir(dir, path, name, n)
	case unix.S_IFLNK:
		n.target, err = readLinkAt(int(dir.Fd()), name)
		if err != nil {
			return nil, readError(w.fullPath(path), err)
		}
	case unix.S_IFREG:
		n.size = st.Size
		n.from.path = w.fullPath(path)
	}
	if st.Nlink > 1 {
		w.files[id] = n
	}
	return n, nil
}

// enterDir adds the entries of a directory. Virtual file systems and the cache stay empty.
func (w *walker) enterDir(dir *os.File, path, name string, n *node) error {
	want := n.from.id
	if want.dev == w.cache.dev && want.ino == w.cache.ino {
		n.from, n.mtime = nil, stamp{} // otherwise each image in the cache would change the result
		return nil
	}
	fd, err := unix.Openat(int(dir.Fd()), name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return readError(w.fullPath(path), err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer func() { _ = f.Close() }() // only read
	if err := n.from.checkUnchanged(f); err != nil {
		return errChanged(w.fullPath(path))
	}
	if stop, err := w.isVirtual(f, want.dev); err != nil || stop {
		return err
	}
	return w.addDir(f, path, n)
}

// isVirtual reports whether a directory is on a virtual file system such as proc.
func (w *walker) isVirtual(f *os.File, dev uint64) (bool, error) {
	stop, known := w.virtual[dev]
	if known {
		return stop, nil
	}
	var st unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &st); err != nil {
		return false, fmt.Errorf("stat the file system of %s: %w", f.Name(), err)
	}
	stop = slices.Contains([]int64{
		unix.PROC_SUPER_MAGIC, unix.SYSFS_MAGIC, unix.CGROUP_SUPER_MAGIC, unix.CGROUP2_SUPER_MAGIC,
		unix.DEBUGFS_MAGIC, unix.TRACEFS_MAGIC, unix.SECURITYFS_MAGIC, unix.BPF_FS_MAGIC, unix.PSTOREFS_MAGIC,
		unix.DEVPTS_SUPER_MAGIC, unix.NSFS_MAGIC, unix.EFIVARFS_MAGIC, unix.SELINUX_MAGIC, unix.BINFMTFS_MAGIC,
	}, int64(st.Type)) //nolint:unconvert // narrower on 32 bits
	w.virtual[dev] = stop
	return stop, nil
}

// readLinkAt returns the target of a symbolic link in an open directory.
func readLinkAt(dir int, name string) (string, error) {
	var buf [maxPath + 1]byte
	n, err := unix.Readlinkat(dir, name, buf[:])
	if err != nil {
		return "", &fs.PathError{Op: "readlink", Path: name, Err: err}
	}
	if n == 0 || n > maxPath {
		return "", sandpit.Errorf(sandpit.Invalid, "the target of link %s has %d bytes", quoteName(name), n)
	}
	return string(buf[:n]), nil
}

// countFile counts a file of the given name against the limits.
func (l *limits) countFile(name string, n *node, size int64) error {
	l.entries--
	l.names -= int64(len(name) + len(n.target))
	if n.kind() == unix.S_IFREG {
		l.bytes -= size
	}
	var what string
	switch {
	case len(name) > maxPath:
		return sandpit.Errorf(sandpit.Invalid, "%s: the path has more than %d bytes", quoteName(name), maxPath)
	case l.entries < 0:
		what = "too many files"
	case l.names < 0:
		what = "too many long names and links"
	case l.bytes < 0 || size < 0:
		what = "too many bytes"
	default:
		return nil
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%s, counted up to %s", what, quoteName(name)),
		"remove files that the sandbox does not need, or mount a directory of the machine instead")
}
