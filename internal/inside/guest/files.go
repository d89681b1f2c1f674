package guest

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// httpError is a failed file call.
type httpError struct {
	status int
	text   string
}

func (e *httpError) Error() string { return e.text }

func httpErrorf(status int, format string, args ...any) error {
	return &httpError{status, fmt.Sprintf(format, args...)}
}

// answerError writes the response to a failed file call.
func answerError(w http.ResponseWriter, err error) {
	setCauseHeader(w.Header(), err)
	writeError(w, statusOf(err), err.Error())
}

func statusOf(err error) int {
	he, isHTTP := errors.AsType[*httpError](err)
	_, isUser := errors.AsType[errUser](err)
	switch {
	case isHTTP:
		return he.status
	case errors.Is(err, sandpit.Invalid):
		return http.StatusBadRequest
	case errors.Is(err, sandpit.Exhausted):
		return http.StatusInsufficientStorage
	case isUser:
		return http.StatusUnauthorized
	case errors.Is(err, fs.ErrNotExist):
		return http.StatusNotFound
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return http.StatusInsufficientStorage
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		return http.StatusForbidden
	case errors.Is(err, errors.ErrUnsupported):
		return http.StatusNotImplemented
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.EBUSY),
		errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP), errors.Is(err, io.ErrUnexpectedEOF):
		return http.StatusBadRequest
	}
	return http.StatusInternalServerError
}

// fileUser returns the user of a file call: name, or the default user if it is empty.
func (g *Guest) fileUser(name string) (user, error) {
	if name == "" {
		name = g.currentSettings().user
	}
	return g.accounts.lookupUser(name)
}

// fileTarget returns the target that the query of a file call names. The caller closes it.
func (g *Guest) fileTarget(r *http.Request) (*target, error) {
	u, err := g.fileUser(r.URL.Query().Get("username"))
	if err != nil {
		return nil, err
	}
	return resolveTarget(r.Header, u, r.URL.Query().Get("path"), true)
}

func (g *Guest) serveDownload(w http.ResponseWriter, r *http.Request) {
	p, err := g.fileTarget(r)
	if err != nil {
		answerError(w, err)
		return
	}
	defer p.closeRoot()
	f, err := p.openRegular()
	if err != nil {
		answerError(w, p.clientError(err))
		return
	}
	defer f.Close()
	content, modified, err := contentOf(f)
	if err != nil {
		answerError(w, p.clientError(err))
		return
	}
	h := w.Header()
	h.Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(p.path)}))
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Vary", "Accept-Encoding")
	switch chooseEncoding(r) {
	case "identity":
		if content == f {
			h.Set("ETag", fmt.Sprintf(`"%x"`, modified.UnixNano())) // a replaced file is a new one
		}
		http.ServeContent(w, r, "", modified, content)
	case "gzip":
		h.Set("Content-Encoding", "gzip")
		sendCompressed(w, content)
	default:
		answerError(w, httpErrorf(http.StatusNotAcceptable, "no acceptable encoding; identity and gzip are served"))
	}
}

// maxUnsized bounds a file whose size the kernel reports as 0, in bytes.
const maxUnsized = 4 << 20

// contentOf returns the content of f. A file of size 0 may be one that the kernel generates while it is read, as in
// /proc, and that cannot be sought in.
func contentOf(f *os.File) (content io.ReadSeeker, modified time.Time, err error) {
	info, err := f.Stat()
	if err != nil {
		return nil, time.Time{}, err
	}
	if info.Size() > 0 {
		return f, info.ModTime(), nil
	}
	data, err := io.ReadAll(io.LimitReader(f, maxUnsized+1))
	if err == nil && len(data) > maxUnsized {
		err = httpErrorf(http.StatusRequestEntityTooLarge, "the file reports no size and has more than %d bytes", maxUnsized)
	}
	return bytes.NewReader(data), info.ModTime(), err
}

// sendCompressed sends the content of f with gzip. After a failed read it aborts the connection, because the client
// must not mistake a part for the whole.
func sendCompressed(w io.Writer, f io.Reader) {
	z, err := gzip.NewWriterLevel(w, gzip.BestSpeed)
	if err == nil {
		_, err = io.Copy(z, f)
	}
	if err != nil || z.Close() != nil {
		panic(http.ErrAbortHandler)
	}
}

// chooseEncoding returns the encoding of a response: gzip if the client accepts it and wants the whole file,
// otherwise identity, or "" if the client accepts neither.
func chooseEncoding(r *http.Request) string {
	weights := map[string]float64{}
	for item := range strings.SplitSeq(strings.Join(r.Header.Values("Accept-Encoding"), ","), ",") {
		name, params, _ := strings.Cut(item, ";")
		weight := 1.0
		if q, ok := strings.CutPrefix(strings.TrimSpace(params), "q="); ok {
			if parsed, err := strconv.ParseFloat(q, 64); err == nil {
				weight = parsed
			}
		}
		weights[strings.ToLower(strings.TrimSpace(name))] = weight
	}
	identity, named := weights["identity"]
	if any, has := weights["*"]; !named && has {
		identity, named = any, true
	}
	if zipped := weights["gzip"]; zipped > 0 && zipped >= identity && r.Header.Get("Range") == "" {
		return "gzip"
	}
	if named && identity == 0 {
		return ""
	}
	return "identity"
}

// openRegular opens a regular file. It does not wait for a writer of a named pipe.
func (p *target) openRegular() (*os.File, error) {
	f, err := p.root.OpenFile(p.rel, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = httpErrorf(http.StatusBadRequest, "%s is not a regular file", p.path)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// composeRequest is the body of /files/compose.
type composeRequest struct {
	Sources     []string `json:"source_paths"`
	Destination string   `json:"destination"`
	Username    string   `json:"username"`
}

// maxSources is how many files one call may concatenate.
const maxSources = 10_000

// serveCompose concatenates files in order into one, and then removes them.
func (g *Guest) serveCompose(w http.ResponseWriter, r *http.Request) {
	var req composeRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxMessage)).Decode(&req); err != nil {
		answerError(w, httpErrorf(http.StatusBadRequest, "body: %v", err))
		return
	}
	line, err := g.composeFile(r, req)
	if err != nil {
		answerError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, line)
}

func (g *Guest) composeFile(r *http.Request, req composeRequest) (written, error) {
	if len(req.Sources) == 0 || len(req.Sources) > maxSources || req.Destination == "" {
		return written{}, httpErrorf(http.StatusBadRequest, "want a destination and 1 to %d source paths", maxSources)
	}
	u, err := g.fileUser(req.Username)
	if err != nil {
		return written{}, err
	}
	to, err := resolveTarget(r.Header, u, req.Destination, true)
	if err != nil {
		return written{}, err
	}
	defer to.closeRoot()
	var sources []*target
	defer func() {
		for _, s := range sources {
			s.closeRoot()
		}
	}()
	for _, name := range req.Sources {
		s, err := resolveTarget(r.Header, u, name, true)
		if err != nil {
			return written{}, err
		}
		sources = append(sources, s)
	}
	parts := &concatenation{rest: sources}
	defer parts.closeCurrent()
	line, err := to.replaceFile(parts, fileAttributes{})
	if err != nil {
		return written{}, err
	}
	for _, s := range sources {
		if s.real == to.real {
			continue
		}
		if err := s.root.Remove(s.rel); err != nil {
			return written{}, err
		}
	}
	return line, nil
}

// concatenation reads files one after the other, with one file open at a time.
type concatenation struct {
	rest []*target
	open *os.File
}

func (c *concatenation) Read(b []byte) (int, error) {
	for {
		if c.open == nil {
			if len(c.rest) == 0 {
				return 0, io.EOF
			}
			var err error
			if c.open, err = c.rest[0].openRegular(); err != nil {
				c.open = nil
				return 0, err
			}
			c.rest = c.rest[1:]
		}
		n, err := c.open.Read(b)
		if !errors.Is(err, io.EOF) {
			return n, err
		}
		c.closeCurrent()
		if n > 0 {
			return n, nil
		}
	}
}

func (c *concatenation) closeCurrent() {
	if c.open != nil {
		_ = c.open.Close() // it was only read
		c.open = nil
	}
}
