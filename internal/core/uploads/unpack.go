package uploads

import (
	"archive/tar"
	"bufio"
	"cmp"
	"compress/gzip"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// The limits of the unpacked files of one build.
const (
	maxUnpacked = 4 << 30 // bytes
	maxEntries  = 200_000
	entryBytes  = 4 << 10 // what an entry counts in addition to its content
)

// Files are the archives that one build copies from. Each is unpacked once, in a
// directory of the build. A Files is not for concurrent use.
type Files struct {
	uploads *Store
	owner   string
	dir     string
	space   *diskspace.Reservation
	bytes   int64           // remaining limit
	entries int             // remaining limit
	there   map[string]bool // by hash
	replace bool            // later files replace earlier ones
}

// Dir returns the directory of the build.
func (b *Files) Dir() string { return b.dir }

// buildPrefix begins the names of directories for one build each.
const buildPrefix = "build-"

// OpenFiles creates the directory of a build. The caller must call Remove.
func (u *Store) OpenFiles(owner string) (*Files, error) {
	space, err := u.space.Reserve(owner, 0)
	if err != nil {
		return nil, err
	}
	err = os.MkdirAll(u.dir, 0o700)
	dir := ""
	if err == nil {
		dir, err = os.MkdirTemp(u.dir, buildPrefix)
	}
	if err != nil {
		space.Release()
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "store files: %w", err)
	}
	return &Files{uploads: u, owner: owner, dir: dir, space: space, bytes: maxUnpacked, entries: maxEntries, there: make(map[string]bool)}, nil
}

// Remove removes the directory of the build.
func (b *Files) Remove() {
	if os.RemoveAll(b.dir) == nil { // otherwise the next server removes it, and it counts until then
		b.space.Release()
	}
}

// UnpackOnce returns the directory of an archive, which it unpacks if necessary.
//
// NotFound: there is no such archive. Invalid: it is not an archive. Exhausted: it is too
// large.
func (b *Files) UnpackOnce(ctx context.Context, hash string) (string, error) {
	dir := filepath.Join(b.dir, hash)
	if b.there[hash] {
		return dir, nil
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", err
	}
	if err := b.unpackArchive(ctx, hash, dir); err != nil {
		return "", err
	}
	b.there[hash] = true
	return dir, nil
}

// UnpackTogether unpacks several archives in the directory of the build itself, in this order.
//
// NotFound: there is no such archive. Invalid: it is not an archive. Exhausted: they are too large.
func (b *Files) UnpackTogether(ctx context.Context, hashes []string) error {
	b.replace = true
	for _, hash := range hashes {
		if err := b.unpackArchive(ctx, hash, b.dir); err != nil {
			return err
		}
	}
	return nil
}

func errNoFiles(hash string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "files with the hash %.20s… not found", hash), "upload them again")
}

// openArchive opens an archive, which is not removed until done is called. NotFound.
func (u *Store) openArchive(n Name) (f *os.File, done func(), err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	a := u.archives[n]
	if a != nil {
		f, err = os.Open(u.archivePath(n))
	}
	if a == nil || errors.Is(err, fs.ErrNotExist) {
		return nil, nil, errNoFiles(n.Hash)
	}
	if err != nil {
		return nil, nil, err
	}
	a.users++
	a.used = time.Now()
	return f, func() {
		_ = f.Close() // only read
		u.mu.Lock()
		defer u.mu.Unlock()
		if a := u.archives[n]; a != nil && a.users > 0 {
			a.users--
		}
	}, nil
}

// unpackArchive unpacks an archive in a directory. Nothing in the archive can lead out of the
// directory.
func (b *Files) unpackArchive(ctx context.Context, hash, dir string) error {
	f, done, err := b.uploads.openArchive(Name{b.owner, hash})
	if err != nil {
		return err
	}
	defer done()
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	plain, err := openPacked(f)
	if err != nil {
		return err
	}
	if err := b.unpackTar(ctx, root, tar.NewReader(plain)); err != nil {
		code := sandpit.CodeOf(err)
		if code != sandpit.Exhausted {
			code = cmp.Or(sandpit.CodeOf(context.Cause(ctx)), sandpit.Invalid)
		}
		return sandpit.WithHint(sandpit.Errorf(code, "unpack files: %w", err), sandpit.HintOf(err))
	}
	return nil
}

// openPacked returns the content of a file that may be compressed with gzip. Invalid.
func openPacked(f io.Reader) (io.Reader, error) {
	packed := bufio.NewReader(f)
	if magic, _ := packed.Peek(2); string(magic) != "\x1f\x8b" {
		return packed, nil
	}
	plain, err := gzip.NewReader(packed)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "unpack files: %w", err)
	}
	return plain, nil
}

// maxPeek is how many bytes of an archive CheckArchive reads.
const maxPeek = 64 << 10

// CheckArchive reads the beginning of an archive, so that an invalid one is refused before its
// build waits for its turn.
//
// NotFound: there is no such archive. Invalid: it is not an archive.
func (u *Store) CheckArchive(n Name) error {
	f, done, err := u.openArchive(n)
	if err != nil {
		return err
	}
	defer done()
	plain, err := openPacked(f)
	if err != nil {
		return err
	}
	first := &io.LimitedReader{R: plain, N: maxPeek}
	if _, err := tar.NewReader(first).Next(); err != nil && !errors.Is(err, io.EOF) && first.N > 0 {
		return sandpit.Errorf(sandpit.Invalid, "unpack files: %w", err)
	}
	return nil
}

func (b *Files) unpackTar(ctx context.Context, root *os.Root, from *tar.Reader) error {
	for {
		h, err := from.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = context.Cause(ctx)
		}
		if err != nil {
			return err
		}
		if b.entries--; b.entries < 0 {
			return sandpit.Errorf(sandpit.Exhausted, "more than %d files in one build", maxEntries)
		}
		if b.bytes -= h.Size + entryBytes; b.bytes < 0 || h.Size < 0 {
			return sandpit.Errorf(sandpit.Exhausted, "more than %d bytes in one build", int64(maxUnpacked))
		}
		if err := b.space.Write(entryBytes); err != nil {
			return err
		}
		if err := b.unpackEntry(ctx, root, h, from); err != nil {
			return err
		}
	}
}

func (b *Files) unpackEntry(ctx context.Context, root *os.Root, h *tar.Header, contents io.Reader) error {
	name := path.Clean(strings.TrimLeft(h.Name, "/"))
	if name == "." {
		return nil
	}
	if err := root.MkdirAll(path.Dir(name), 0o700); err != nil {
		return err
	}
	if b.replace && h.Typeflag != tar.TypeDir {
		if err := root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	mode := h.FileInfo().Mode().Perm() | 0o600 // so that the builder can copy them
	switch h.Typeflag {
	case tar.TypeDir:
		return root.MkdirAll(name, mode|0o100)
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return root.Link(path.Clean(strings.TrimLeft(h.Linkname, "/")), name)
	case tar.TypeReg:
	default:
		return sandpit.Errorf(sandpit.Invalid, "%.100q is neither a file nor a directory", h.Name)
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(reservedWriter{f, b.space}, contextReader{ctx, contents})
	return errors.Join(err, f.Close())
}

// contextReader fails when its context ends, which limits the time for archives that expand
// enormously.
type contextReader struct {
	ctx context.Context //nolint:containedctx // of one unpacking
	r   io.Reader
}

// Read implements io.Reader.
func (e contextReader) Read(p []byte) (int, error) {
	if e.ctx.Err() != nil {
		return 0, context.Cause(e.ctx)
	}
	return e.r.Read(p)
}
