// Package layer compares what sandboxes have changed: layers of OCI images, which are tar
// streams with ".wh." files for what was removed. The streams come out of sandboxes, so
// nothing in them is trusted; names, counts and sizes are bounded, and nothing is written.
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

// The bounds of a layer. What is beyond is refused as Exhausted.
const (
	maxEntries = 500_000
	maxNames   = 16 << 20 // bytes of all names and links together
	maxName    = 4096     // bytes of one
	maxContent = 64 << 30 // bytes of all files together, holes included
	maxText    = 256 << 10
	maxTexts   = 32 << 20 // bytes of all texts together; more are compared and not kept
)

// The marks of removed files, see the OCI image specification.
const (
	whiteout = ".wh."
	opaque   = ".wh..wh..opq"
)

// file is an entry of a layer, or, if gone, what was removed.
type file struct {
	gone bool
	kind byte
	mode uint32 // permission bits, set-id and sticky bits
	uid  int
	gid  int
	size int64
	link string // target of a link, numbers of a device
	sum  [sha256.Size]byte
	text []byte // of a regular file that is a small text; nil: it is none, or was not kept
}

// Layer is what differs from an image. The zero value is nothing.
type Layer struct {
	files   map[string]file // by path, without a slash in front
	emptied map[string]bool // directories of which nothing of the image is left
}

// Read reads a layer to its end. With texts the content of small text files is kept.
//
// What is kept is taken from the account of memory of ctx.
//
// Invalid: it is no layer. Exhausted: it is larger than anybody needs, or than there is
// memory for.
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
			return nil, sandpit.Errorf(sandpit.Exhausted, "it has more files than can be compared")
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
	// textCost is how many bytes each byte of a text takes: what it is read into may have
	// room for twice as many.
	textCost = 2
)

// contextReader ends with a context, also within a hole that is read from nowhere.
type contextReader struct {
	ctx context.Context //nolint:containedctx // of the reading, which is all it is there for
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
	return sandpit.Errorf(sandpit.Invalid, "it is no layer: %w", err)
}

// cleanName returns a name as a path inside.
func cleanName(name string) (string, error) {
	if len(name) > maxName || strings.ContainsRune(name, 0) {
		return "", sandpit.Errorf(sandpit.Invalid, "it has a file with an impossible name")
	}
	if name = path.Join("/", name); name == "/" {
		return ".", nil
	}
	return name[1:], nil
}

// recordRemoval reports whether a name stands for something that was removed, and notes that.
func (l *Layer) recordRemoval(name string) bool {
	dir, base := path.Split(name)
	rest, ok := strings.CutPrefix(base, whiteout)
	switch {
	case !ok:
		return false
	case base == opaque:
		l.emptied[path.Clean("/" + dir)[1:]] = true
	case rest != "" && !strings.HasPrefix(rest, ".wh."): // others mean nothing
		l.files[dir+rest] = file{gone: true}
	}
	return true
}

func (l *Layer) readEntry(in io.Reader, h *tar.Header, texts bool) (file, error) {
	f := file{kind: h.Typeflag, mode: uint32(h.Mode & 0o7777), uid: h.Uid, gid: h.Gid}
	switch h.Typeflag {
	case tar.TypeReg:
		return readContent(in, f, h.Size, texts)
	case tar.TypeLink: // another name of a file, and which of them comes first means nothing
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
	if _, err := io.Copy(sum, in); err != nil { // nothing is left if it was read above
		return f, toLayerError(err)
	}
	sum.Sum(f.sum[:0])
	return f, nil
}

func isText(b []byte) bool { return utf8.Valid(b) && bytes.IndexByte(b, 0) < 0 }

// findFile returns what a layer says of a path; false if it is as in the image.
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
		if f, ok := l.files[dir]; ok && f.kind != tar.TypeDir { // a file in the place of a directory
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
