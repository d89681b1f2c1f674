package toolbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"net/textproto"
	"net/url"
	"path"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

// partWriter writes a multipart/form-data response.
type partWriter struct{ *multipart.Writer }

func newPartWriter(w io.Writer) *partWriter { return &partWriter{multipart.NewWriter(w)} }

func (w *partWriter) contentType() string { return w.FormDataContentType() }

// createPart begins a part. A size of 0 is unknown.
func (w *partWriter) createPart(field, filename, contentType string, size int64) (io.Writer, error) {
	h := make(textproto.MIMEHeader)
	h.Set("Content-Disposition", fmt.Sprintf(`form-data; name="%s"; %s`, field, filenameParam(filename)))
	h.Set("Content-Type", contentType)
	if size > 0 {
		h.Set("Content-Length", strconv.FormatInt(size, 10))
	}
	return w.CreatePart(h)
}

// filenameParam returns the parameter of a part's file name. Clients find the requested path by
// it, so it must arrive unchanged: a name that is not ASCII also has the form of RFC 8187.
func filenameParam(name string) string {
	text := `filename="` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\r", "%0D", "\n", "%0A").Replace(name) + `"`
	if strings.ContainsFunc(name, func(r rune) bool { return r > '~' || r < ' ' }) {
		text += `; filename*=UTF-8''` + strings.ReplaceAll(url.QueryEscape(name), "+", "%20")
	}
	return text
}

// attachmentHeader returns a Content-Disposition that makes browsers save a response.
func attachmentHeader(name string) string {
	return cmp.Or(mime.FormatMediaType("attachment", map[string]string{"filename": name}), "attachment")
}

// maxFieldPath bounds a field with a path, in bytes, with a byte to notice longer ones.
const maxFieldPath = maxPath + 1

// uploadedFile is the answer to the upload of one file.
type uploadedFile struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Type string `json:"type"`
}

// uploadFile writes the part "file" of a form. Earlier clients decode the answer as an object of
// objects, so it is empty.
func (fileHandlers) uploadFile(ctx context.Context, c *call) error {
	if _, err := c.receiveFile(ctx); err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, struct{}{})
}

// uploadDescribed is uploadFile for clients that want a description of the file.
func (fileHandlers) uploadDescribed(ctx context.Context, c *call) error {
	p, err := c.receiveFile(ctx)
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, uploadedFile{Name: path.Base(p), Path: p, Type: "file"})
}

// receiveFile writes the part "file" of a form to the path in the query, and returns the path.
func (c *call) receiveFile(ctx context.Context) (string, error) {
	p, err := c.queryPath(ctx, "path")
	if err != nil {
		return "", err
	}
	form, err := c.readForm()
	if err != nil {
		return "", err
	}
	for {
		part, err := form.nextPart()
		if errors.Is(err, io.EOF) {
			return "", sandpit.Errorf(sandpit.Invalid, `upload %s: the form has no part "file"`, p)
		}
		if err != nil {
			return "", toFormError(err)
		}
		if part.FormName() == "file" {
			err = c.guest.WriteFile(ctx, "", p, part, sandpit.WriteOptions{})
			return p, errors.Join(toFileError(err), form.skipRest())
		}
	}
}

const (
	// maxPartHead bounds what precedes the content of a part, in bytes: the header of Go's reader may
	// have 10 MiB, and no account of memory knows of it.
	maxPartHead = 64 << 10
	// maxFieldName bounds the index in the name of a field, in bytes.
	maxFieldName = 1 << 10
)

var errPartHead = fmt.Errorf("the header of a part has more than %d bytes", maxPartHead)

// form reads the parts of a body.
type form struct {
	parts   *multipart.Reader
	body    *headReader
	current *multipart.Part
}

// headReader is a body of which at most left bytes are read while a header is expected.
type headReader struct {
	io.ReadCloser

	isHead bool
	left   int
}

// Read implements io.Reader.
func (h *headReader) Read(p []byte) (int, error) {
	if !h.isHead {
		return h.ReadCloser.Read(p)
	}
	if h.left == 0 {
		return 0, errPartHead
	}
	n, err := h.ReadCloser.Read(p[:min(len(p), h.left)])
	h.left -= n
	return n, err
}

// readForm returns a reader of the parts of the body.
func (c *call) readForm() (*form, error) {
	body := &headReader{ReadCloser: c.r.Body}
	c.r.Body = body
	parts, err := c.r.MultipartReader()
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "read the form: %w", err)
	}
	return &form{parts: parts, body: body}, nil
}

// nextPart skips the rest of a part and returns the next one, or io.EOF.
func (f *form) nextPart() (*multipart.Part, error) {
	if f.current != nil {
		if _, err := io.Copy(io.Discard, f.current); err != nil {
			return nil, err
		}
	}
	f.body.isHead, f.body.left = true, maxPartHead
	part, err := f.parts.NextPart()
	f.body.isHead, f.current = false, part
	return part, err
}

func toFormError(err error) error { return sandpit.Errorf(sandpit.Invalid, "read the form: %w", err) }

// skipRest reads the rest of a form, so that the client reads the response after it has sent
// everything.
func (f *form) skipRest() error {
	for {
		_, err := f.nextPart()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return toFormError(err)
		}
	}
}

// uploadFiles writes the files of a form of pairs: files[i].path, and files[i].file with the
// content, in this order. After a failure it still writes the other files, and responds with
// the first failure.
func (fileHandlers) uploadFiles(ctx context.Context, c *call) error {
	form, err := c.readForm()
	if err != nil {
		return err
	}
	paths := make(map[string]string)
	var first error
	for {
		part, err := form.nextPart()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return errors.Join(first, toFormError(err))
		}
		if err := c.receivePart(ctx, part, paths); err != nil && first == nil {
			first = err
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
	if first == nil && len(paths) > 0 {
		first = sandpit.Errorf(sandpit.Invalid, "the form has %d paths without a file", len(paths))
	}
	if first != nil {
		return first
	}
	return c.writeEmpty(http.StatusOK)
}

const (
	// maxUploads is the maximum number of paths of one upload whose files have not arrived.
	maxUploads = 10_000
	// uploadCost is the memory of such a path besides its text, in bytes.
	uploadCost = 128
)

// receivePart handles one part of a form of pairs. It removes a path when its file arrives.
func (c *call) receivePart(ctx context.Context, part *multipart.Part, paths map[string]string) error {
	name := part.FormName()
	if index, found := strings.CutSuffix(name, ".path"); found {
		if len(index) > maxFieldName {
			return sandpit.Errorf(sandpit.Invalid, "a field of the form has a name of %d bytes, want at most %d", len(name), maxFieldName)
		}
		text, err := io.ReadAll(io.LimitReader(part, maxFieldPath))
		if err != nil {
			return toFormError(err)
		}
		if len(paths) >= maxUploads {
			return sandpit.Errorf(sandpit.Invalid, "the form has more than %d paths without a file", maxUploads)
		}
		if err := memory.AccountOf(ctx).Reserve(int64(len(index) + len(text) + uploadCost)); err != nil {
			return err
		}
		paths[index] = string(text)
		return nil
	}
	index, found := strings.CutSuffix(name, ".file")
	if !found {
		return nil
	}
	given, found := paths[index]
	if !found {
		return sandpit.Errorf(sandpit.Invalid, "the form has no %.50s.path before %.50s", index, name)
	}
	delete(paths, index)
	memory.AccountOf(ctx).Return(int64(len(index) + len(given) + uploadCost))
	p, err := c.filePath(ctx, index+".path", given)
	if err != nil {
		return err
	}
	return toFileError(c.guest.WriteFile(ctx, "", p, part, sandpit.WriteOptions{}))
}
