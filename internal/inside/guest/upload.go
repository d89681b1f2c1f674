package guest

import (
	"bufio"
	"compress/gzip"
	"errors"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/files/beneath"
	"github.com/sandpit-dev/sandpit/internal/inside/watch"
)

const (
	// metadataHeader begins the names of headers with a file's metadata.
	metadataHeader = "X-Metadata-"
	// ModeHeader holds the permissions of uploaded files, in octal. It is not part of E2B's protocol.
	ModeHeader = "Sandpit-Mode"
)

// written is one entry of the response to an upload.
type written struct {
	Name     string            `json:"name"`
	Path     string            `json:"path"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// fileAttributes are what an upload sets besides the content.
type fileAttributes struct {
	mode     fs.FileMode // 0: the mode of the existing file, or 0644
	metadata map[string]string
}

func (g *Guest) serveUpload(w http.ResponseWriter, r *http.Request) {
	list, err := g.receiveUpload(r)
	if err != nil {
		answerError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, list)
}

func (g *Guest) receiveUpload(r *http.Request) ([]written, error) {
	attributes, err := attributesOf(r.Header)
	if err != nil {
		return nil, err
	}
	switch encoding := strings.ToLower(r.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
	case "gzip":
		z, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, httpErrorf(http.StatusBadRequest, "body: %v", err)
		}
		r.Body = io.NopCloser(z)
	default:
		return nil, httpErrorf(http.StatusUnsupportedMediaType, "content encoding %q; identity and gzip are understood", encoding)
	}
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind == "multipart/form-data" {
		return g.receiveParts(r, attributes)
	}
	return g.receiveOne(r, attributes)
}

// attributesOf reads the file attributes from the headers of an upload.
func attributesOf(header http.Header) (fileAttributes, error) {
	var a fileAttributes
	if mode := header.Get(ModeHeader); mode != "" {
		bits, err := strconv.ParseUint(mode, 8, 32)
		if err != nil || bits == 0 || bits > 0o777 {
			return a, httpErrorf(http.StatusBadRequest, "header %s: %q is not an octal number from 1 to 777", ModeHeader, mode)
		}
		a.mode = fs.FileMode(bits)
	}
	for name, values := range header {
		key, ok := strings.CutPrefix(name, metadataHeader)
		if !ok || key == "" {
			continue
		}
		if a.metadata == nil {
			a.metadata = make(map[string]string)
		}
		a.metadata[strings.ToLower(key)] = strings.Join(values, ", ")
	}
	return a, nil
}

func (g *Guest) receiveOne(r *http.Request, a fileAttributes) ([]written, error) {
	if r.URL.Query().Get("path") == "" {
		return nil, httpErrorf(http.StatusBadRequest, "no path")
	}
	p, err := g.fileTarget(r)
	if err != nil {
		return nil, err
	}
	defer p.closeRoot()
	line, err := p.replaceFile(r.Body, a)
	return []written{line}, p.clientError(err)
}

// receiveParts writes the parts named "file". A part's file name is the whole path with directories, unless the query
// has a path.
func (g *Guest) receiveParts(r *http.Request, a fileAttributes) ([]written, error) {
	u, err := g.fileUser(r.URL.Query().Get("username"))
	if err != nil {
		return nil, err
	}
	r.Body = inLargePieces(r)
	parts, err := r.MultipartReader()
	if err != nil {
		return nil, httpErrorf(http.StatusBadRequest, "%v", err)
	}
	asked := r.URL.Query().Get("path")
	seen := make(map[string]bool)
	list := []written{}
	for {
		part, err := parts.NextRawPart()
		if errors.Is(err, io.EOF) {
			return list, nil
		}
		if err != nil {
			return nil, httpErrorf(http.StatusBadRequest, "%v", err)
		}
		if part.FormName() != "file" {
			continue
		}
		name := asked
		if name == "" {
			name = wholeName(part)
		}
		if name == "" {
			return nil, httpErrorf(http.StatusBadRequest, "a part has no file name")
		}
		p, err := resolveTarget(r.Header, u, name, true)
		if err != nil {
			return nil, err
		}
		line, err := receivePart(p, part, a, seen)
		p.closeRoot()
		if err != nil {
			return nil, err
		}
		list = append(list, line)
	}
}

// inLargePieces returns the body of a request with a read buffer of copyBuffer: Go's form reader reads 4 KiB at a
// time.
func inLargePieces(r *http.Request) io.ReadCloser {
	size := int64(copyBuffer)
	if r.ContentLength >= 0 {
		size = min(size, r.ContentLength)
	}
	return struct {
		io.Reader
		io.Closer
	}{bufio.NewReaderSize(r.Body, int(size)), r.Body}
}

func receivePart(p *target, part *multipart.Part, a fileAttributes, seen map[string]bool) (written, error) {
	if seen[p.real] {
		return written{}, httpErrorf(http.StatusBadRequest, "%s is in the request twice", p.path)
	}
	seen[p.real] = true
	line, err := p.replaceFile(part, a)
	return line, p.clientError(err)
}

// wholeName returns a part's file name with its directories, which Go's own method removes.
func wholeName(part *multipart.Part) string {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return params["filename"]
}

// replaceFile atomically replaces the file p, owned by its user. It creates missing directories.
func (p *target) replaceFile(content io.Reader, a fileAttributes) (written, error) {
	line := written{Name: path.Base(p.path), Path: p.path, Type: "file", Metadata: a.metadata}
	info, err := p.root.Lstat(p.rel)
	existed := err == nil
	switch {
	case err == nil && info.IsDir():
		return line, httpErrorf(http.StatusBadRequest, "path is a directory: %s", p.path)
	case err == nil && !info.Mode().IsRegular():
		return line, httpErrorf(http.StatusBadRequest, "%s is not a regular file", p.path)
	case a.mode != 0:
	case err == nil:
		a.mode = info.Mode().Perm()
	default:
		a.mode = 0o644
	}
	if err := p.makeParents(); err != nil {
		return line, err
	}
	dir, name, err := p.openParent()
	if err != nil {
		return line, err
	}
	defer dir.Close()
	f, err := createTemp(dir, existed)
	if err != nil {
		return line, err
	}
	temp := path.Base(f.Name())
	if err = writeContent(f, content, a, p.user); err == nil {
		err = dir.Rename(temp, dir, name)
	}
	if err != nil {
		return line, errors.Join(err, dir.Remove(temp))
	}
	return line, nil
}

// createTemp creates a file with a unique name.
func createTemp(dir *beneath.Root, existed bool) (*os.File, error) {
	return dir.OpenFile(watch.TempName(existed), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
}

// copyBuffer is how much is copied at once, in bytes.
const copyBuffer = 256 << 10

// writeContent writes content in pieces of copyBuffer, however small the pieces that it reads: parts of a form come
// in pieces of 4 KiB, and system calls are slow in a sandbox.
func writeContent(f *os.File, content io.Reader, a fileAttributes, u user) error {
	w := bufio.NewWriterSize(struct{ io.Writer }{f}, copyBuffer)
	_, err := w.ReadFrom(content)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.Chown(u.uid, u.gid)
	}
	if err == nil {
		err = f.Chmod(a.mode)
	}
	if err == nil {
		err = writeMetadata(f, a.metadata)
	}
	return errors.Join(err, f.Close())
}
