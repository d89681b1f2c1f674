// Package layer compares the changes of sandboxes: layers of OCI images, which are tar streams with ".wh." files for
// removed files. The streams come out of sandboxes and are not trusted; names, counts and sizes are bounded, and
// nothing is written to disk.
package layer

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// Bounds of a layer. A larger one is refused with Exhausted.
const (
	maxEntries = 500_000
	maxNames   = 16 << 20 // bytes of all names and links together
	maxName    = 4096     // bytes of one
	maxContent = 64 << 30 // bytes of all files together, holes included
	maxText    = 256 << 10
	maxTexts   = 32 << 20 // bytes of all texts together; further texts are compared but not stored
)

// Names that mark removed files: see the OCI image specification.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// file is an entry of a layer, or a removed file if gone.
type file struct {
	gone bool
	kind byte
	mode uint32 // permission bits, set-id and sticky bits
	uid  int
	gid  int
	size int64
	link string // target of a link, numbers of a device
	sum  [sha256.Size]byte
	text []byte // content of a small text file; nil for other files, or if it was not stored
}

// Layer is the set of differences from an image. The zero value is empty.
type Layer struct {
	files   map[string]file // by path without a leading slash
	emptied map[string]bool // directories without any file of the image
}

// Read reads a layer to its end. With texts it stores the content of small text files.
//
// The memory for it is reserved in the memory account of ctx.
//
// Invalid: not a layer. Exhausted: it exceeds a bound or the available memory.
func Read(ctx context.Context, r io.Reader, texts bool) (*Layer, error) {
	l := &Layer{files: make(map[string]file), emptied: make(map[string]bool)}
	in := tar.NewReader(r)
	names, kept, left := 0, 0, int64(maxContent)
	account := memory.AccountOf(ctx)
	for {
		h, err := in.Next()
		switch {
		case errors.Is(err, io.EOF):
			return l, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil:
			return nil, toLayerError(err)
		}
		names += len(h.Name) + len(h.Linkname)
		left -= h.Size
		if len(l.files)+len(l.emptied) >= maxEntries || names > maxNames || left < 0 {
			return nil, sandpit.Errorf(sandpit.Exhausted, "the layer has more files than can be compared")
		}
		if err := account.Reserve(entryCost + int64(len(h.Name)+len(h.Linkname))); err != nil {
			return nil, err
		}
		name, err := cleanName(h.Name)
		if err != nil {
			return nil, err
		}
		if name == "." || l.recordRemoval(name) {
			continue
		}
		f, err := l.readEntry(contextReader{ctx, in}, h, texts && kept < maxTexts)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			return nil, err
		}
		if h.Typeflag == tar.TypeReg {
			kept += len(f.text)
			if err := account.Reserve(textCost * int64(len(f.text))); err != nil {
				return nil, err
			}
		}
		l.files[name] = f
	}
}

const (
	// entryCost is how many bytes of memory a file takes besides its name and text.
	entryCost = 512
	// textCost is how many bytes of memory each byte of a text takes: the buffer that it is read into may be twice as
	// large.
	textCost = 2
)

// contextReader ends when a context ends, even within a hole, which needs no data.
type contextReader struct {
	ctx context.Context //nolint:containedctx // lives as long as one read
	r   io.Reader
}

// Read implements io.Reader.
func (e contextReader) Read(p []byte) (int, error) {
	if e.ctx.Err() != nil {
		return 0, context.Cause(e.ctx)
	}
	return e.r.Read(p)
}

func toLayerError(err error) error {
	if code := sandpit.CodeOf(err); code != "" && code != sandpit.Internal {
		return err
	}
	return sandpit.Errorf(sandpit.Invalid, "not a layer: %w", err)
}

// cleanName returns a name as a clean relative path.
func cleanName(name string) (string, error) {
	if len(name) > maxName || strings.ContainsRune(name, 0) {
		return "", sandpit.Errorf(sandpit.Invalid, "the layer has a file with an invalid name")
	}
	if name = path.Join("/", name); name == "/" {
		return ".", nil
	}
	return name[1:], nil
}

// recordRemoval reports whether a name marks a removed file, and records the removal.
func (l *Layer) recordRemoval(name string) bool {
	dir, base := path.Split(name)
	rest, ok := strings.CutPrefix(base, whiteout)
	switch {
	case !ok:
		return false
	case base == opaque:
		l.emptied[path.Clean("/" + dir)[1:]] = true
	case rest != "" && !strings.HasPrefix(rest, ".wh."): // other names have no meaning
		l.files[dir+rest] = file{gone: true}
	}
	return true
}

func (l *Layer) readEntry(in io.Reader, h *tar.Header, texts bool) (file, error) {
	f := file{kind: h.Typeflag, mode: uint32(h.Mode & 0o7777), uid: h.Uid, gid: h.Gid}
	switch h.Typeflag {
	case tar.TypeReg:
		return readContent(in, f, h.Size, texts)
	case tar.TypeLink: // another name of a file; which name comes first has no meaning
		if target, err := cleanName(h.Linkname); err == nil && l.files[target].kind == tar.TypeReg {
			return l.files[target], nil
		}
		f.link = h.Linkname
	case tar.TypeSymlink:
		f.link = h.Linkname
	case tar.TypeChar, tar.TypeBlock:
		f.link = fmt.Sprintf("%d:%d", h.Devmajor, h.Devminor)
	}
	return f, nil
}

// readContent reads a regular file.
func readContent(in io.Reader, f file, size int64, texts bool) (file, error) {
	f.size = size
	sum := sha256.New()
	if texts && size <= maxText {
		text, err := io.ReadAll(io.LimitReader(in, maxText))
		if err != nil {
			return f, toLayerError(err)
		}
		sum.Write(text)
		if isText(text) {
			f.text = text
		}
	}
	if _, err := io.Copy(sum, in); err != nil { // no data is left if it was read above
		return f, toLayerError(err)
	}
	sum.Sum(f.sum[:0])
	return f, nil
}

func isText(b []byte) bool { return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 }

// findFile returns the layer's entry for a path; false if the path is as in the image.
func (l *Layer) findFile(name string) (file, bool) {
	if l == nil {
		return file{}, false
	}
	if f, ok := l.files[name]; ok {
		return f, true
	}
	for dir := parentOf(name); ; dir = parentOf(dir) {
		if l.emptied[dir] || l.files[dir].gone {
			return file{gone: true}, true
		}
		if f, ok := l.files[dir]; ok && f.kind != tar.TypeDir { // a file replaces a directory
			return file{gone: true}, true
		}
		if dir == "" {
			return file{}, false
		}
	}
}

func parentOf(name string) string {
	k := strings.LastIndexByte(name, '/')
	return name[:max(k, 0)]
}
