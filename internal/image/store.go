package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Root is a root file system to start from.
type Root struct {
	// Path is the EROFS file.
	Path string
	// Mounts are directories of the machine that belong to it, all read only,
	// sources without symbolic links. Only the host image has any.
	Mounts []sandpit.Mount
	// Env is what programs need in addition to the usual, such as PATH on a
	// machine that keeps its programs elsewhere. Nil for nothing.
	Env map[string]string
}

// Progress hears how many bytes of the source are converted. It is called about
// once per MiB and at the end, by one goroutine at a time, and not at all when
// the image is in the cache. The total of a directory is the sum of its files,
// that of an archive the size of its file.
type Progress func(done, total int64)

// Store is a cache of images in a directory. All methods may be called
// concurrently, and any number of processes may share the directory.
type Store struct {
	dir     string
	machine string // root directory of the machine, but for tests "/"
	limits  limits
}

// limits bound what one image may hold.
type limits struct {
	entries int
	bytes   int64 // of all files together, and of an archive without compression
	names   int64 // bytes of all names and link targets together
}

var usualLimits = limits{entries: 1_000_000, bytes: 20 << 30, names: 256 << 20}

// Open returns the cache in dir, which is made if missing and closed to other
// users. What killed processes left in it is removed.
//
// PermissionDenied: dir belongs to another user.
func Open(dir string) (*Store, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open the image cache: %w", err)
	}
	s := &Store{dir: abs, machine: "/", limits: usualLimits}
	if err := makePrivate(abs); err != nil {
		return nil, fmt.Errorf("open the image cache: %w", err)
	}
	if err := s.sweep(); err != nil {
		return nil, fmt.Errorf("clean the image cache: %w", err)
	}
	return s, nil
}

func makePrivate(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return &fs.PathError{Op: "stat", Path: dir, Err: err}
	}
	if int(st.Uid) != os.Geteuid() {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "%s belongs to user %d", dir, st.Uid),
			"use another cache directory")
	}
	if st.Mode&0o077 != 0 {
		return os.Chmod(dir, 0o700) //nolint:gosec // a directory must be searchable
	}
	return nil
}

// Resolve returns the root file system that ref names, converting it first if
// need be:
//
//   - "" or "host": the machine's own programs;
//   - a directory, as a path that starts with /, ./ or ../. What other file
//     systems mounted in it hold is included, but for those that the machine's
//     kernel makes up (proc, sysfs and the like), which become empty
//     directories;
//   - a tar file, as a path that ends in .tar, .tar.gz or .tgz.
//
// NotFound: no such file. Unsupported: another form. Invalid: the archive is
// damaged, cut off, or names what it must not. Exhausted: too large, or the disk
// is full. PermissionDenied: a file cannot be read. Unavailable: it changed
// while it was read.
func (s *Store) Resolve(ctx context.Context, ref sandpit.Image, p Progress) (Root, error) {
	root, err := s.resolve(ctx, string(ref), p)
	if err != nil {
		if ref == "" {
			ref = sandpit.HostImage
		}
		return Root{}, fmt.Errorf("image %s: %w", ref, err)
	}
	return root, nil
}

func (s *Store) resolve(ctx context.Context, ref string, p Progress) (Root, error) {
	switch {
	case ref == "" || ref == string(sandpit.HostImage):
		return s.resolveHost(ctx, p)
	case !isPath(ref):
		return Root{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "not a form of image that this version knows"), formHint(ref))
	}
	info, err := os.Stat(ref)
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return Root{}, sandpit.Errorf(sandpit.NotFound, "%w", bare(err))
	case err != nil:
		return Root{}, bare(err)
	case info.IsDir():
		path, err := s.fromDir(ctx, ref, p)
		return Root{Path: path}, err
	case info.Mode().IsRegular() && isTar(ref):
		path, err := s.fromTar(ctx, ref, p)
		return Root{Path: path}, err
	}
	return Root{}, sandpit.WithHint(
		sandpit.Errorf(sandpit.Unsupported, "neither a directory nor a .tar, .tar.gz or .tgz file"),
		"unpack it, and name the directory or the .tar file")
}

// bare drops the path from an error that will be told with the image's name.
func bare(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	return err
}

func isPath(ref string) bool {
	first, _, _ := strings.Cut(ref, "/")
	return first == "" || first == "." || first == ".." || isTar(ref)
}

func isTar(ref string) bool {
	for _, suffix := range []string{".tar", ".tar.gz", ".tgz"} {
		if strings.HasSuffix(ref, suffix) {
			return true
		}
	}
	return false
}

func formHint(ref string) string {
	if _, err := os.Stat(ref); err == nil {
		return "for the file or directory of that name write ./" + ref
	}
	return "images of registries are not available yet in this version; " +
		"use host, a directory (./rootfs) or a tar file of one (./rootfs.tar)"
}

// Single returns an EROFS file that holds one program of root's, which anybody
// may run, under the given name. It is made once per key and name; open is
// called only then, and what it returns is closed.
//
// Invalid: name is not a file name. Exhausted: the disk is full.
func (s *Store) Single(ctx context.Context, key, name string, open func() (io.ReadCloser, error)) (string, error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	image := digest("single", key, name)
	path, err := s.once(ctx, job{
		lock: image,
		find: s.keyed(image),
		write: func(f *os.File) (string, error) {
			return image, writeSingle(ctx, f, name, open)
		},
	})
	if err != nil {
		return "", fmt.Errorf("image of %s: %w", name, err)
	}
	return path, nil
}

func writeSingle(ctx context.Context, f *os.File, name string, open func() (io.ReadCloser, error)) error {
	program, err := open()
	if err != nil {
		return err
	}
	defer func() { _ = program.Close() }() // only read
	w := newWriter(f)
	n := &node{mode: unix.S_IFREG | 0o755}
	if n.block, n.size, err = w.data(&meter{ctx: ctx, r: program}); err != nil {
		return err
	}
	root := newDir(0o755)
	root.children[name] = n
	return w.finish(root)
}

// meter passes bytes on, counts them for whoever wants to know, and ends with
// the context.
type meter struct {
	ctx   context.Context //nolint:containedctx // a reader has no other way to hear of it
	r     io.Reader
	total int64
	tell  Progress

	done, told int64
}

const progressStep = 1 << 20 // bytes

func (m *meter) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	m.done += int64(n)
	if m.done-m.told >= progressStep {
		m.report()
	}
	return n, err
}

// report tells how far it is.
func (m *meter) report() {
	m.told = m.done
	if m.tell != nil {
		m.tell(m.done, m.total)
	}
}
