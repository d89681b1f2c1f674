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
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// Root is a root file system to start from.
type Root struct {
	// ID names it in the cache, see Entry.ID. "" for the host image.
	ID string
	// Path is the EROFS file.
	Path string
	// File is the same file, open for reading. While it, or a descriptor made
	// from it, is open in any process, the cache does not make room by removing
	// the image. Who asked for the Root closes it.
	File *os.File
	// Mounts are directories of the machine that belong to it, all read only,
	// sources without symbolic links. Only the host image has any.
	Mounts []sandpit.Mount
	// Config is what the image says about programs in it.
	Config
}

// Kind says what an image was made from.
type Kind string

// The kinds.
const (
	KindLayers    Kind = "layers"    // an image with its layers, from a registry or a file
	KindTar       Kind = "tar"       // an archive of a root file system
	KindDirectory Kind = "directory" // a directory
	KindHost      Kind = "host"      // this machine's own programs
	KindProgram   Kind = "program"   // one program of sandpit's own
	KindTemplate  Kind = "template"  // another image and what was added to it
)

// Progress hears how many bytes of the source are fetched or converted. It is
// called about once per MiB and at the end, by one goroutine at a time, and not at
// all when the image is in the cache. The total of a directory is the sum of its
// files, that of an archive the size of its file, that of an image of a registry
// the size of its layers as they are sent.
type Progress func(done, total int64)

// Store is a cache of images in a directory. All methods may be called
// concurrently, and any number of processes may share the directory.
//
// Its own methods are the administrator's: they find every image and give shared names.
// For returns what the users of a server may do.
type Store struct {
	dir      string
	machine  string // root directory of the machine, but for tests "/"
	limits   limits
	timeouts timeouts
	o        Options

	space    *diskspace.Budget // nil: nothing is reserved
	clearing *sync.Mutex       // held while room is made
	inFlight *inFlight
}

// shared is the owner of names that mean the same image to all owners: the administrator of
// the cache has given them. Without a server there are no others.
const shared = ""

// Offline returns the same cache, which asks no registry: callers that have no time to wait
// for one get NotFound instead.
func (s *Store) Offline() *Store {
	offline := *s
	offline.o.Pull = pullOffline
	return &offline
}

// limits bound what one image may hold.
type limits struct {
	entries int
	bytes   int64 // of all files together, and of an archive without compression
	names   int64 // bytes of all names and link targets together
	steps   int64 // directories and links on the way to files
}

var defaultLimits = limits{entries: 1_000_000, bytes: 20 << 30, names: 256 << 20, steps: 100_000_000}

// Open returns the cache in dir, which is made if missing and closed to other
// users. What killed processes left in it is removed.
//
// PermissionDenied: dir belongs to another user.
func Open(dir string, o Options) (*Store, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open the image cache: %w", err)
	}
	s := &Store{dir: abs, machine: "/", limits: defaultLimits, timeouts: defaultTimeouts, o: o.withDefaults()}
	s.space, s.clearing, s.inFlight = s.newBudget(), &sync.Mutex{}, &inFlight{paths: make(map[string]int)}
	if err := makePrivate(abs); err != nil {
		return nil, fmt.Errorf("open the image cache: %w", err)
	}
	if err := s.removeAbandoned(); err != nil {
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

// Resolve returns the root file system that ref names, fetching and converting it
// first if need be:
//
//   - "" or "host": the machine's own programs;
//   - a directory, as a path that starts with /, ./ or ../. What other file
//     systems mounted in it hold is included, but for those that the machine's
//     kernel makes up (proc, sysfs and the like), which become empty
//     directories. If it is an OCI layout, the image in it is meant, and a colon
//     and a tag after the path say which one;
//   - a tar file, as a path that ends in .tar, .tar.gz, .tgz or .tar.zst: of a root
//     file system, of an OCI layout, or of what docker save writes, again with a
//     tag if it has several images;
//   - "template:" and a name: what SetTemplate gave that name;
//   - an Entry's ID: that image of the cache;
//   - anything else is an image of a registry, as docker pull takes it.
//
// NotFound: no such file, image or tag. Unsupported: another form, or not made for
// this machine. Invalid: the archive is damaged, cut off, or names what it must
// not. Exhausted: too large, or the disk is full. PermissionDenied: a file cannot
// be read, or the registry refuses. Unavailable: it changed while it was read, or
// the registry cannot be reached. Timeout: the registry is too slow.
func (s *Store) Resolve(ctx context.Context, ref sandpit.Image, p Progress) (Root, error) {
	root, err := s.resolveRoot(ctx, string(ref), p)
	if err != nil {
		if ref == "" {
			ref = sandpit.HostImage
		}
		return Root{}, fmt.Errorf("image %s: %w", ref, err)
	}
	return root, nil
}

func (s *Store) resolveRoot(ctx context.Context, ref string, p Progress) (Root, error) {
	if ref == "" || ref == string(sandpit.HostImage) {
		return s.resolveHost(ctx, p)
	}
	var f *os.File
	var err error
	switch {
	case IsPath(ref):
		f, _, err = s.openPath(ctx, ref, p)
	case isKey(ref):
		f, err = s.openID(ctx, ref)
	default:
		f, err = s.openRegistry(ctx, ref, p)
	}
	if err != nil {
		return Root{}, err
	}
	root, err := newRoot(f)
	root.ID = s.keyOf(f)
	return root, err
}

// newRoot describes a finished image by its note.
func newRoot(f *os.File) (Root, error) {
	n, err := readNote(f)
	if err != nil {
		return Root{}, errors.Join(err, f.Close())
	}
	return Root{Path: f.Name(), File: f, Config: n.Config}, nil
}

// openPath returns the image of a directory or archive, and what else is known
// of it.
func (s *Store) openPath(ctx context.Context, ref string, p Progress) (*os.File, indexEntry, error) {
	ref, tag := splitTag(ref)
	info, err := os.Stat(ref)
	switch {
	case errors.Is(err, unix.ENOTDIR):
		return nil, indexEntry{}, sandpit.Errorf(sandpit.NotFound, "%w", withoutPath(err))
	case err != nil:
		return nil, indexEntry{}, withoutPath(err)
	case info.IsDir() && isLayout(ref):
		return s.openLayout(ctx, ref, tag)
	case info.IsDir() && tag != "":
		return nil, indexEntry{}, sandpit.Errorf(sandpit.NotFound, "%s is not a directory of images with tags", ref)
	case info.IsDir():
		f, err := s.openDir(ctx, ref, p)
		return f, indexEntry{}, err
	case info.Mode().IsRegular() && isTar(ref):
		return s.openTar(ctx, ref, tag, p)
	}
	return nil, indexEntry{}, sandpit.WithHint(
		sandpit.Errorf(sandpit.Unsupported, "neither a directory nor a .tar, .tar.gz, .tgz or .tar.zst file"),
		"unpack it, and name the directory or the .tar file")
}

// splitTag tells a path from the tag behind it, if there is one.
func splitTag(ref string) (path, tag string) {
	if _, err := os.Lstat(ref); err == nil {
		return ref, ""
	}
	i := strings.LastIndexByte(ref, ':')
	if i <= 0 || strings.Contains(ref[i:], "/") {
		return ref, ""
	}
	if _, err := os.Lstat(ref[:i]); err != nil {
		return ref, ""
	}
	return ref[:i], ref[i+1:]
}

// withoutPath drops the path from an error that will be told with the image's name.
func withoutPath(err error) error {
	if pathErr, ok := errors.AsType[*fs.PathError](err); ok {
		return pathErr.Err
	}
	return err
}

// IsPath reports whether ref, which Resolve takes, names something of the machine's
// file system rather than an image of a registry.
func IsPath(ref string) bool {
	first, _, more := strings.Cut(ref, "/")
	if first == "" && more || first == "." || first == ".." || isTar(ref) {
		return true
	}
	path, _, found := strings.Cut(ref, ":")
	return found && isTar(path)
}

func isTar(ref string) bool {
	for _, suffix := range []string{".tar", ".tar.gz", ".tgz", ".tar.zst"} {
		if strings.HasSuffix(ref, suffix) {
			return true
		}
	}
	return false
}

// Single returns an EROFS file that holds one program of root's, which anybody
// may run, under the given name. It is made once per key and name; open is
// called only then, and what it returns is closed. The file stays for a minute at
// least.
//
// Invalid: name is not a file name. Exhausted: the disk is full.
func (s *Store) Single(ctx context.Context, key, name string, open func() (io.ReadCloser, error)) (string, error) {
	if err := checkName(name); err != nil {
		return "", err
	}
	image := cacheKey("single", key, name)
	f, _, err := s.makeOnce(ctx, makeJob{
		lock: image,
		find: s.findKey(image),
		write: func(f *os.File) (makeResult, error) {
			if err := writeSingle(ctx, f, name, open); err != nil {
				return makeResult{}, err
			}
			return makeResult{key: image}, writeNote(f, note{Kind: KindProgram, Source: name})
		},
	})
	if err != nil {
		return "", fmt.Errorf("image of %s: %w", name, err)
	}
	return f.Name(), f.Close()
}

func writeSingle(ctx context.Context, f *os.File, name string, open func() (io.ReadCloser, error)) error {
	program, err := open()
	if err != nil {
		return err
	}
	defer func() { _ = program.Close() }() // only read
	w := newWriter(f)
	n := &node{mode: unix.S_IFREG | 0o755}
	if n.block, n.size, err = w.writeData(&countingReader{ctx: ctx, r: program}); err != nil {
		return err
	}
	root := newDir(0o755)
	root.children[name] = n
	return w.finishImage(root)
}

// countingReader passes bytes on, counts them for whoever wants to know, and ends with
// the context.
type countingReader struct {
	ctx      context.Context //nolint:containedctx // a reader has no other way to hear of it
	r        io.Reader
	total    int64
	progress Progress

	done, reported int64
}

const progressStep = 1 << 20 // bytes

func (m *countingReader) Read(p []byte) (int, error) {
	if err := m.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := m.r.Read(p)
	m.done += int64(n)
	if m.done-m.reported >= progressStep {
		m.reportProgress()
	}
	return n, err
}

// reportProgress tells how far it is.
func (m *countingReader) reportProgress() {
	m.reported = m.done
	if m.progress != nil {
		m.progress(m.done, m.total)
	}
}
