package image

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"math"
	"os"
	"strings"
	"syscall"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// openTar returns the image of an archive: of a root file system, or of images with layers,
// of which tag selects one if there are several. The image's key is a digest of the archive;
// an index entry records it as long as the file is unchanged.
func (s *Store) openTar(ctx context.Context, path, tag string, p Progress) (*os.File, indexEntry, error) {
	var e indexEntry
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, e, readError(path, err)
	}
	defer func() { _ = f.Close() }() // only read
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nil, e, &fs.PathError{Op: "stat", Path: path, Err: err}
	}
	from := &source{path: path, id: identityOf(&st)}
	index := cacheKey("index", fmt.Sprint(st.Dev, ":", st.Ino), tag)
	out, _, err := s.builder.makeOnce(ctx, makeJob{
		lock: index,
		find: func() (string, error) {
			e, err = s.lookUpIndex(index, from.id)
			return e.Key, err
		},
		write: func(out *os.File) (makeResult, error) {
			m := &countingReader{ctx: ctx, r: f, total: st.Size, progress: p}
			var result makeResult
			var err error
			if result, e, err = s.convertTar(m, out, archiveOrigin{path, tag}); err == nil {
				err = from.checkUnchanged(f)
			}
			if err != nil {
				return makeResult{}, err
			}
			e.From = from.id.String()
			// The index is written first: without its image it is ignored, but
			// the next holder of this lock must find it.
			return result, s.cache.writeRecord(ctx, index+indexSuffix, e)
		},
	})
	return out, e, err
}

// indexEntry records the image of an archive.
type indexEntry struct {
	From  string   `json:"from"` // the archive's identity
	Key   string   `json:"key"`
	Names []string `json:"names,omitempty"` // of the image in the archive
}

const indexSuffix = ".index"

func (id identity) String() string {
	return fmt.Sprintf("%d:%d:%o:%d:%v:%v", id.dev, id.ino, id.mode, id.size, id.mtime, id.ctime)
}

// lookUpIndex returns the index entry of an archive if the archive is unchanged. The entry has
// a key if the image exists.
func (s *Store) lookUpIndex(index string, id identity) (indexEntry, error) {
	var e indexEntry
	if err := s.cache.readRecord(index+indexSuffix, &e); err != nil || e.From != id.String() || !isKey(e.Key) {
		return indexEntry{}, err
	}
	key, err := s.cache.existingKey(e.Key)
	e.Key = key
	return e, err
}

// archiveOrigin is the path of an archive and the tag of an image in it.
type archiveOrigin struct{ path, tag string }

// convertTar writes the image of the archive that m reads to out. If the archive contains
// layers, it builds their image in the cache instead.
func (s *Store) convertTar(m *countingReader, out *os.File, from archiveOrigin) (makeResult, indexEntry, error) {
	h := sha256.New()
	raw := bufio.NewReaderSize(io.TeeReader(m, h), 256<<10)
	a := newArchive(out, s.builder.limits)
	if err := a.readAll(raw); err != nil {
		return makeResult{}, indexEntry{}, archiveError(err)
	}
	if err := discardRest(raw); err != nil {
		return makeResult{}, indexEntry{}, err
	}
	m.reportProgress()
	if a.holdsLayers() {
		e, err := s.buildUnpacked(m.ctx, a, from)
		return makeResult{key: e.Key, inCache: true}, e, err
	}
	if from.tag != "" {
		return makeResult{}, indexEntry{}, sandpit.Errorf(sandpit.NotFound, "the archive contains a root file system and no image with the tag %s", quoteName(from.tag))
	}
	key := cacheKey("tar", sumOf(h))
	if err := a.w.finishImage(a.root); err != nil {
		return makeResult{}, indexEntry{}, err
	}
	return makeResult{key: key}, indexEntry{Key: key}, writeNote(out, note{Kind: KindTar, Source: from.path})
}

func sumOf(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// discardRest reads the bytes after the archive, for the digest.
func discardRest(r io.Reader) error {
	_, err := io.Copy(io.Discard, r)
	return err
}

// archiveError adds a code to an error of reading an archive.
func archiveError(err error) error {
	if _, ok := errors.AsType[*sandpit.Error](err); ok {
		return err
	}
	if _, ok := errors.AsType[syscall.Errno](err); ok || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return errCutOff()
	}
	return sandpit.Errorf(sandpit.Invalid, "damaged, or not a tar archive: %w", err)
}

func errCutOff() error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "the archive is truncated"), "create or fetch it again")
}

// archive builds an image from an archive, entry by entry.
type archive struct {
	w    *writer
	root *node
	left limits

	in     io.Reader
	stream int64 // uncompressed bytes that may still be read
	ended  bool  // in is at its end

	layer *layer // the changes of this archive to lower layers; nil for a root file system
}

func newArchive(out *os.File, lim limits) *archive {
	return &archive{w: newWriter(out), root: newDir(0o755), left: lim, stream: lim.bytes}
}

// readAll reads an archive: plain, gzip or zstd.
func (a *archive) readAll(r *bufio.Reader) error {
	a.in, a.ended = r, false
	magic, err := r.Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	z, err := newUnpacker(r, string(magic))
	if err != nil {
		return err
	}
	if d, ok := z.(*zstd.Decoder); ok {
		defer d.Close()
	}
	a.in = z
	if err := a.readEntries(); err != nil || z == io.Reader(r) {
		return err
	}
	// Read to the end, where the checksum is. Data after it is ignored.
	if err := discardRest(a); err != nil && !errors.Is(err, gzip.ErrHeader) && !errors.Is(err, zstd.ErrMagicMismatch) {
		return err
	}
	return nil
}

// Read reads uncompressed bytes of the archive.
func (a *archive) Read(p []byte) (int, error) {
	if a.stream < 0 {
		return 0, sandpit.Errorf(sandpit.Exhausted, "the archive has too many bytes")
	}
	n, err := a.in.Read(p)
	a.stream -= int64(n)
	a.ended = a.ended || n == 0 && errors.Is(err, io.EOF)
	return n, err
}

func (a *archive) readEntries() error {
	t := tar.NewReader(a)
	for {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			if a.ended { // instead of the two empty blocks that end an archive
				return errCutOff()
			}
			return nil
		}
		if err != nil && !errors.Is(err, tar.ErrInsecurePath) { // addEntry checks names
			return err
		}
		if err := a.addEntry(h, t); err != nil {
			return err
		}
	}
}

// addEntry adds the file of one header. It replaces an earlier entry of the same name.
func (a *archive) addEntry(h *tar.Header, contents io.Reader) error {
	parts, err := splitName(h.Name)
	if err != nil {
		return err
	}
	if a.layer != nil && isMark(parts) {
		return a.applyMark(h.Name, parts)
	}
	n, err := a.toNode(h)
	if err != nil {
		return err
	}
	if n == nil {
		return a.leaveOut(parts)
	}
	if len(parts) == 0 {
		if !n.isDir() {
			return sandpit.Errorf(sandpit.Invalid, "entry %s is not a directory", quoteName(h.Name))
		}
		n.children = a.root.children
		*a.root = *n
		return nil
	}
	if err = a.left.countFile(h.Name, n, h.Size); err != nil {
		return err
	}
	last := len(parts) - 1
	dir, err := a.walkTo(parts[:last], true)
	if err != nil {
		return fmt.Errorf("entry %s: %w", quoteName(h.Name), err)
	}
	if h.Typeflag == tar.TypeLink {
		if n, err = a.findLinked(h); err != nil {
			return err
		}
	}
	if n.kind() == unix.S_IFREG && h.Typeflag != tar.TypeLink {
		if n.block, n.size, err = a.w.writeData(contents); err != nil {
			return err
		}
	}
	a.putNode(dir, parts[last], n)
	return nil
}

// putNode adds n to a directory. An existing directory keeps its entries.
func (a *archive) putNode(dir *node, name string, n *node) {
	old := dir.children[name]
	if old != nil && old.isDir() && n.isDir() {
		n.children = old.children
		*old = *n
		n = old
	} else {
		dir.children[strings.Clone(name)] = n // a substring would keep the path in memory
		old = nil
	}
	if a.layer != nil {
		a.layer.addName(dir, name, n, old == nil)
	}
}

// walkTo returns the directory at the given path components. It resolves them as the
// sandbox's kernel does: it follows symbolic links, and the parent of the root is the root.
// If create is true, it creates missing directories.
func (a *archive) walkTo(parts []string, create bool) (*node, error) {
	at := []*node{a.root}
	links := 0
	for len(parts) > 0 {
		if a.left.steps--; a.left.steps < 0 {
			return nil, sandpit.Errorf(sandpit.Exhausted, "the names pass through too many links and directories")
		}
		name := parts[0]
		parts = parts[1:]
		here := at[len(at)-1]
		if name == "" || name == "." {
			continue
		}
		if name == ".." {
			at = at[:max(len(at)-1, 1)]
			continue
		}
		next := here.children[name]
		switch {
		case len(at) > maxPath/2:
			return nil, sandpit.Errorf(sandpit.Invalid, "more than %d nested directories", maxPath/2)
		case next == nil && !create:
			return nil, sandpit.Errorf(sandpit.Invalid, "there is no directory %s", quoteName(name))
		case next == nil:
			next = newDir(0o755)
			if err := a.left.countFile(name, next, 0); err != nil {
				return nil, err
			}
			a.putNode(here, name, next)
			at = append(at, next)
		case next.isDir():
			at = append(at, next)
		case next.kind() == unix.S_IFLNK:
			if links++; links > maxLinks {
				return nil, sandpit.Errorf(sandpit.Invalid, "too many symbolic links at %s", quoteName(name))
			}
			if strings.HasPrefix(next.target, "/") {
				at = at[:1]
			}
			parts = append(strings.Split(next.target, "/"), parts...)
		default:
			return nil, sandpit.Errorf(sandpit.Invalid, "%s is not a directory", quoteName(name))
		}
	}
	return at[len(at)-1], nil
}

// findLinked returns the target of a hard link.
func (a *archive) findLinked(h *tar.Header) (*node, error) {
	parts, err := splitName(h.Linkname)
	if err != nil {
		return nil, fmt.Errorf("entry %s: hard link: %w", quoteName(h.Name), err)
	}
	var n *node
	if last := len(parts) - 1; last >= 0 {
		if dir, err := a.walkTo(parts[:last], false); err == nil {
			n = dir.children[parts[last]]
		}
	}
	if n == nil || n.isDir() {
		return nil, sandpit.Errorf(sandpit.Invalid, "entry %s: hard link to %s, which is not an earlier file in the archive",
			quoteName(h.Name), quoteName(h.Linkname))
	}
	return n, nil
}

// toNode returns a node with the metadata of a header, or nil if images do not contain this
// type of file.
func (a *archive) toNode(h *tar.Header) (*node, error) {
	if h.Uid < 0 || h.Gid < 0 || int64(h.Uid) >= math.MaxUint32 || int64(h.Gid) >= math.MaxUint32 {
		return nil, sandpit.Errorf(sandpit.Invalid, "entry %s: owner %d:%d", quoteName(h.Name), h.Uid, h.Gid)
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
			return nil, sandpit.Errorf(sandpit.Invalid, "entry %s: symbolic link to %s", quoteName(h.Name), quoteName(n.target))
		}
	case tar.TypeChar, tar.TypeBlock, tar.TypeXGlobalHeader, typeVolume:
		return nil, nil // left out
	default:
		return nil, sandpit.Errorf(sandpit.Invalid, "entry %s is of the unknown type %q", quoteName(h.Name), h.Typeflag)
	}
	return n, nil
}

// typeVolume is GNU tar's label of an archive.
const typeVolume = 'V'

// splitName splits a name into clean path components below the root of the image.
//
// Invalid: the path is outside of the root.
func splitName(name string) ([]string, error) {
	var parts []string
	for part := range strings.SplitSeq(name, "/") {
		switch part {
		case "", ".":
		case "..":
			if len(parts) == 0 {
				return nil, sandpit.Errorf(sandpit.Invalid, "%s is a path outside of the archive", quoteName(name))
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
