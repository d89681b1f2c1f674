package data

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// parseQuery reads the query of a request. Unknown and repeated parameters are errors.
func (c *call) parseQuery(known ...string) (url.Values, error) {
	values, err := url.ParseQuery(c.r.URL.RawQuery)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "query: %w", err)
	}
	for name, all := range values {
		at := 0
		for at < len(known) && known[at] != name {
			at++
		}
		if at == len(known) {
			return nil, sandpit.Errorf(sandpit.Invalid, "query: unknown parameter %.100q; want %s", name, strings.Join(known, ", "))
		}
		if len(all) > 1 {
			return nil, sandpit.Errorf(sandpit.Invalid, "query: %s is given %d times", name, len(all))
		}
	}
	return values, nil
}

// fileRef names a file.
type fileRef struct{ user, path string }

// parseFile reads the query of a call on a file, which may have others parameters.
func (c *call) parseFile(others ...string) (fileRef, url.Values, error) {
	values, err := c.parseQuery(append([]string{"path", "user"}, others...)...)
	if err != nil {
		return fileRef{}, nil, err
	}
	p := fileRef{values.Get("user"), values.Get("path")}
	return p, values, checkPath("path", p.path)
}

// maxPath is the maximum number of bytes of a path.
const maxPath = 4096

func checkPath(name, p string) error {
	switch {
	case p == "":
		return sandpit.Errorf(sandpit.Invalid, "%s: path is missing", name)
	case len(p) > maxPath:
		return sandpit.Errorf(sandpit.Invalid, "%s: %d bytes, want at most %d", name, len(p), maxPath)
	case strings.Contains(p, "\x00"):
		return sandpit.Errorf(sandpit.Invalid, "%s: contains a NUL byte", name)
	}
	return nil
}

// statFile describes a file and follows links: the size of a link is not that of its target.
func (c *call) statFile(ctx context.Context, p fileRef) (sandpit.File, error) {
	const maxLinks = 40 // like Linux
	for range maxLinks {
		f, err := c.guest.Stat(ctx, p.user, p.path)
		if err != nil || f.Mode&fs.ModeSymlink == 0 {
			return f, err
		}
		if f.LinkTarget == "" || f.LinkTarget == p.path {
			break
		}
		p.path = f.LinkTarget
	}
	return sandpit.File{}, sandpit.Errorf(sandpit.NotFound, "%s: the symbolic link has no target", p.path)
}

// maxRanges is how many ranges of a file a request may have; with more, it gets the whole file.
const maxRanges = 8

func (s *Server) readFile(ctx context.Context, c *call) error {
	p, _, err := c.parseFile()
	if err != nil {
		return err
	}
	f, err := c.statFile(ctx, p)
	if err != nil {
		return err
	}
	if !f.Mode.IsRegular() {
		return sandpit.Errorf(sandpit.Invalid, "%s is not a regular file", p.path)
	}
	if strings.Count(c.r.Header.Get("Range"), ",") >= maxRanges {
		c.r.Header.Del("Range")
	}
	h := c.w.Header()
	setSafeHeaders(h)
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", attachmentHeader(path.Base(cmp.Or(f.Path, p.path))))
	if f.Size == 0 { // possibly a file of /proc, whose content exists only while it is read
		return c.streamFile(func() (io.ReadCloser, error) { return c.guest.ReadFile(ctx, p.user, p.path) })
	}
	if !f.ModifiedAt.IsZero() {
		h.Set("ETag", fmt.Sprintf(`"%x-%x"`, f.ModifiedAt.UnixNano(), f.Size))
	}
	from := &content{ctx: ctx, guest: c.guest, user: p.user, path: p.path, size: f.Size}
	defer from.closeFile()
	// The file is opened before headers are sent, so that an error becomes the response. For a
	// range the offset is not known yet.
	if c.r.Method != http.MethodHead && c.r.Header.Get("Range") == "" {
		if from.open, err = c.guest.ReadRange(ctx, p.user, p.path, 0, f.Size); err != nil {
			return err
		}
	}
	http.ServeContent(c.w, c.r, "", f.ModifiedAt, from)
	return from.err
}

// streamFile responds with the content of what open returns.
func (c *call) streamFile(open func() (io.ReadCloser, error)) error {
	if c.r.Method == http.MethodHead {
		c.w.WriteHeader(http.StatusOK)
		return nil
	}
	r, err := open()
	if err != nil {
		return err
	}
	defer r.Close()
	_, err = c.w.ReadFrom(r)
	return err
}

// attachmentHeader returns a Content-Disposition that makes browsers save a response under a
// name.
func attachmentHeader(name string) string {
	return cmp.Or(mime.FormatMediaType("attachment", map[string]string{"filename": name}), "attachment")
}

func (s *Server) writeFile(ctx context.Context, c *call) error {
	p, values, err := c.parseFile("mode")
	if err != nil {
		return err
	}
	var o sandpit.WriteOptions
	if mode := values.Get("mode"); mode != "" {
		bits, err := strconv.ParseUint(mode, 8, 32)
		if err != nil || bits == 0 || bits > 0o777 {
			return sandpit.Errorf(sandpit.Invalid, "query: mode %.20q: want an octal number from 1 to 777", mode)
		}
		o.Mode = fs.FileMode(bits)
	}
	if err := c.guest.WriteFile(ctx, p.user, p.path, c.r.Body, o); err != nil {
		return err
	}
	return c.writeNoContent()
}

func (s *Server) removeFile(ctx context.Context, c *call) error {
	p, _, err := c.parseFile()
	if err != nil {
		return err
	}
	if err := c.guest.Remove(ctx, p.user, p.path); err != nil {
		return err
	}
	return c.writeNoContent()
}

func (s *Server) statFile(ctx context.Context, c *call) error {
	p, _, err := c.parseFile()
	if err != nil {
		return err
	}
	f, err := c.guest.Stat(ctx, p.user, p.path)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, wire.EntryOf(f))
}

// maxDepth is the maximum depth of a list.
const maxDepth = 1000

func (s *Server) listFiles(ctx context.Context, c *call) error {
	p, values, err := c.parseFile("depth")
	if err != nil {
		return err
	}
	depth := 1
	if given := values.Get("depth"); given != "" {
		if depth, err = strconv.Atoi(given); err != nil || depth < 1 || depth > maxDepth {
			return sandpit.Errorf(sandpit.Invalid, "query: depth %.20q: want 1 to %d", given, maxDepth)
		}
	}
	files, err := c.guest.ListDir(ctx, p.user, p.path, depth)
	if err != nil {
		return err
	}
	list := wire.Page[wire.Entry]{Items: make([]wire.Entry, 0, len(files))}
	for _, f := range files {
		list.Items = append(list.Items, wire.EntryOf(f))
	}
	return c.writeJSON(http.StatusOK, list)
}

func (s *Server) makeDir(ctx context.Context, c *call) error {
	var req wire.MakeDir
	if err := c.readBody(&req); err != nil {
		return err
	}
	if err := checkPath("body.path", req.Path); err != nil {
		return err
	}
	if err := c.guest.MakeDir(ctx, req.User, req.Path); err != nil {
		return err
	}
	return c.writeNoContent()
}

func (s *Server) moveFile(ctx context.Context, c *call) error {
	var req wire.Move
	if err := c.readBody(&req); err != nil {
		return err
	}
	if err := cmp.Or(checkPath("body.from", req.From), checkPath("body.to", req.To)); err != nil {
		return err
	}
	if err := c.guest.Move(ctx, req.User, req.From, req.To); err != nil {
		return err
	}
	return c.writeNoContent()
}

func (s *Server) readTree(ctx context.Context, c *call) error {
	p, _, err := c.parseFile()
	if err != nil {
		return err
	}
	h := c.w.Header()
	setSafeHeaders(h)
	h.Set("Content-Type", "application/x-tar")
	h.Set("Content-Disposition", attachmentHeader(path.Base(path.Clean("/"+p.path))+".tar"))
	return c.streamFile(func() (io.ReadCloser, error) { return c.guest.ReadTree(ctx, p.user, p.path) })
}

func (s *Server) writeTree(ctx context.Context, c *call) error {
	p, _, err := c.parseFile()
	if err != nil {
		return err
	}
	if err := c.guest.WriteTree(ctx, p.user, p.path, c.r.Body); err != nil {
		return err
	}
	return c.writeNoContent()
}
