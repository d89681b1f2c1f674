package image

import (
	"archive/tar"
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// fromTar returns the image of an archive. The image's key is a digest of the
// archive's bytes; an index remembers it for as long as the file is unchanged.
func (s *Store) fromTar(ctx context.Context, path string, p Progress) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return "", readError(path, err)
	}
	defer func() { _ = f.Close() }() // only read
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return "", &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	from := &source{path: path, id: identityOf(&st)}
	index := digest("index", fmt.Sprint(st.Dev, ":", st.Ino))
	return s.once(ctx, job{
		lock: index,
		find: func() (string, error) { return s.indexed(index, from.id) },
		write: func(out *os.File) (string, error) {
			m := &meter{ctx: ctx, r: f, total: st.Size, tell: p}
			sum, err := convertTar(m, out, s.limits)
			if err == nil {
				err = from.check(f)
			}
			if err != nil {
				return "", err
			}
			key := digest("tar", sum)
			// The index first: without its image it counts for nothing, but
			// whoever waits for this lock must find it.
			return key, s.writeIndex(ctx, index, indexEntry{From: from.id.String(), Key: key})
		},
	})
}

// indexEntry says which image an archive gave.
type indexEntry struct {
	From string `json:"from"` // the archive's identity
	Key  string `json:"key"`
}

const indexSuffix = ".index"

func (id identity) String() string {
	return fmt.Sprintf("%d:%d:%o:%d:%v:%v", id.dev, id.ino, id.mode, id.size, id.mtime, id.ctime)
}

// indexed returns the key of an archive's image, if it was made and the archive
// is unchanged.
func (s *Store) indexed(index string, id identity) (string, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, index+indexSuffix))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("look into the image cache: %w", err)
	}
	var e indexEntry
	sound := json.Unmarshal(data, &e) == nil // a crash of the machine may have cut it off
	if !sound || e.From != id.String() || len(e.Key) != 2*sha256.Size {
		return "", nil
	}
	return s.finished(e.Key)
}

func (s *Store) writeIndex(ctx context.Context, index string, e indexEntry) error {
	f, err := s.acquire(ctx, index+indexSuffix)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // gives up the lock; the file was synced
	if err := json.NewEncoder(f).Encode(e); err != nil {
		return errors.Join(fmt.Errorf("write the index: %w", err), os.Remove(f.Name()))
	}
	return s.publish(f, index+indexSuffix)
}

// convertTar writes the image of the archive that m reads, plain or gzip, and
// returns the digest of all its bytes.
func convertTar(m *meter, out *os.File, lim limits) (sum string, err error) {
	h := sha256.New()
	raw := bufio.NewReaderSize(io.TeeReader(m, h), 256<<10)
	a := &archive{w: newWriter(out), root: newDir(0o755), left: lim, stream: lim.bytes}
	if err := a.readAll(raw); err != nil {
		return "", damaged(err)
	}
	if err := a.refuseLayers(); err != nil {
		return "", err
	}
	if err := rest(raw); err != nil {
		return "", err
	}
	m.report()
	return sumOf(h), a.w.finish(a.root)
}

func sumOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// rest reads what may follow the archive, for the digest.
func rest(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// damaged gives the code to what a reader of archives says.
func damaged(err error) error {
	if _, ok := errors.AsType[*sandpit.Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[syscall.Errno](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return cutOff()
	}
	return sandpit.Errorf(sandpit.Invalid, "damaged, or no tar archive: %w", err)
}

func cutOff() error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "the archive is cut off"), "make or fetch it again")
}

// archive is an image made from an archive, entry by entry.
type archive struct {
	w    *writer
	root *node
	left limits

	in     io.Reader
	stream int64 // bytes without compression that may still come
	ended  bool  // in has nothing more
}

// readAll reads an archive, plain or gzip.
func (a *archive) readAll(r *bufio.Reader) error {
	a.in = r
	magic, err := r.Peek(2)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if string(magic) != "\x1f\x8b" {
		return a.entries()
	}
	z, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	a.in = z
	if err := a.entries(); err != nil {
		return err
	}
	// To the end, where the checksum is. What follows it is no part of it.
	if err := rest(a); err != nil && !errors.Is(err, gzip.ErrHeader) {
		return err
	}
	return nil
}

// Read reads the archive without compression.
func (a *archive) Read(p []byte) (int, error) {
	if a.stream < 0 {
		return 0, sandpit.Errorf(sandpit.Exhausted, "the archive holds too many bytes")
	}
	n, err := a.in.Read(p)
	a.stream -= int64(n)
	a.ended = a.ended || n == 0 && errors.Is(err, io.EOF)
	return n, err
}

func (a *archive) entries() error {
	t := tar.NewReader(a)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			if a.ended { // instead of the two empty blocks that end an archive
				return cutOff()
			}
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // entry looks at names itself
			return err
		}
		if err := a.entry(h, t); err != nil {
			return err
		}
	}
}

// entry adds what one header describes. An entry replaces an earlier one of the
// same name.
func (a *archive) entry(h *tar.Header, contents io.Reader) error {
	parts, err := split(h.Name)
	if err != nil {
		return err
	}
	n, err := a.node(h)
	if err != nil || n == nil {
		return err
	}
	if len(parts) == 0 {
		if !n.isDir() {
			return sandpit.Errorf(sandpit.Invalid, "entry %s is not a directory", quote(h.Name))
		}
		n.children = a.root.children
		*a.root = *n
		return nil
	}
	if err = a.left.take(h.Name, n, h.Size); err != nil {
		return err
	}
	last := len(parts) - 1
	dir, err := walk(a.root, parts[:last], &a.left)
	if err != nil {
		return fmt.Errorf("entry %s: %w", quote(h.Name), err)
	}
	if h.Typeflag == tar.TypeLink {
		if n, err = a.linked(h); err != nil {
			return err
		}
	}
	if n.kind() == unix.S_IFREG && h.Typeflag != tar.TypeLink {
		if n.block, n.size, err = a.w.data(contents); err != nil {
			return err
		}
	}
	if old := dir.children[parts[last]]; old != nil && old.isDir() && n.isDir() {
		n.children = old.children
	}
	dir.children[parts[last]] = n
	return nil
}

// linked returns the file that a hard link names.
func (a *archive) linked(h *tar.Header) (*node, error) {
	parts, err := split(h.Linkname)
	if err != nil {
		return nil, fmt.Errorf("entry %s: hard link: %w", quote(h.Name), err)
	}
	var n *node
	if last := len(parts) - 1; last >= 0 {
		if dir, err := walk(a.root, parts[:last], nil); err == nil {
			n = dir.children[parts[last]]
		}
	}
	if n == nil || n.isDir() {
		return nil, sandpit.Errorf(sandpit.Invalid, "entry %s: hard link to %s, which is no file before it in the archive",
			quote(h.Name), quote(h.Linkname))
	}
	return n, nil
}

// node returns what a header says about a file, or nil if it is left out.
func (a *archive) node(h *tar.Header) (*node, error) {
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= math.MaxUint32 || int64(h.Gid) >= math.MaxUint32 {
		return nil, sandpit.Errorf(sandpit.Invalid, "entry %s: owner %d:%d", quote(h.Name), h.Uid, h.Gid)
	}
	n := &node{
		mode: uint32(h.Mode & 0o7777), uid: uint32(h.Uid), gid: uint32(h.Gid),
		mtime: stamp{sec: h.ModTime.Unix(), nsec: uint32(h.ModTime.Nanosecond())}, //nolint:gosec // below 1e9
	}
	switch h.Typeflag {
	case tar.TypeReg, tar.TypeCont, tar.TypeGNUSparse, tar.TypeLink:
		n.mode |= unix.S_IFREG
	case tar.TypeDir:
		n.mode |= unix.S_IFDIR
		n.children = map[string]*node{}
	case tar.TypeFifo:
		n.mode |= unix.S_IFIFO
	case tar.TypeSymlink:
		n.mode |= unix.S_IFLNK
		n.target = h.Linkname
		if n.target == "" || len(n.target) > maxPath || strings.Contains(n.target, "\x00") {
			return nil, sandpit.Errorf(sandpit.Invalid, "entry %s: symbolic link to %s", quote(h.Name), quote(n.target))
		}
	case tar.TypeChar, tar.TypeBlock, tar.TypeXGlobalHeader, typeVolume:
		return nil, nil // left out
	default:
		return nil, sandpit.Errorf(sandpit.Invalid, "entry %s is of the unknown type %q", quote(h.Name), h.Typeflag)
	}
	return n, nil
}

// typeVolume is GNU tar's label of an archive.
const typeVolume = 'V'

// split cuts a name into plain path components, as seen from the root of the
// image. One that leads above the root is refused.
func split(name string) ([]string, error) {
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
		case "..":
			if len(parts) == 0 {
				return nil, sandpit.Errorf(sandpit.Invalid, "%s leads out of the archive", quote(name))
			}
			parts = parts[:len(parts)-1]
		default:
			if err := checkName(part); err != nil {
				return nil, err
			}
			parts = append(parts, part)
		}
	}
	return parts, nil
}

// refuseLayers catches archives of an image's layers, which look like any other
// but hold no root file system.
func (a *archive) refuseLayers() error {
	has := func(name string) bool { return a.root.children[name] != nil }
	layers := has("oci-layout") || has("manifest.json") && has("repositories")
	if !layers || has("usr") || has("bin") || has("etc") {
		return nil
	}
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.Unsupported, "the archive holds the layers of an image, not its files"),
		"export the files instead: docker create --name x IMAGE && docker export x -o rootfs.tar")
}
