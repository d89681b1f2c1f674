package guest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"mime"
	"mime/multipart"
	"net/http"
	"os"
	"path"
	"path/filepath"
	"syscall"
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

// answerError writes an error of a file call.
func answerError(w http.ResponseWriter, err error) {
	status := http.StatusInternalServerError
	he, isHTTP := errors.AsType[*httpError](err)
	switch {
	case isHTTP:
		status = he.status
	case errors.Is(err, fs.ErrNotExist):
		status = http.StatusNotFound
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		status = http.StatusInsufficientStorage
	case errors.Is(err, fs.ErrPermission), errors.Is(err, syscall.EROFS):
		status = http.StatusForbidden
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EINVAL), errors.Is(err, syscall.EISDIR),
		errors.Is(err, syscall.ENAMETOOLONG), errors.Is(err, syscall.ELOOP), errors.Is(err, io.ErrUnexpectedEOF):
		status = http.StatusBadRequest
	}
	writeError(w, status, err.Error())
}

// fileUser returns the user of a file call: as its query says, else the default
// one.
func (g *Guest) fileUser(r *http.Request) (user, error) {
	name := r.URL.Query().Get("username")
	if name == "" {
		name = g.current().user
	}
	u, err := lookupUser(name)
	if err != nil {
		return u, httpErrorf(http.StatusUnauthorized, "%v", err)
	}
	return u, nil
}

func (g *Guest) serveDownload(w http.ResponseWriter, r *http.Request) {
	u, err := g.fileUser(r)
	if err != nil {
		answerError(w, err)
		return
	}
	p := u.resolve(r.URL.Query().Get("path"))
	f, err := openRegular(p)
	if err != nil {
		answerError(w, err)
		return
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		answerError(w, err)
		return
	}
	w.Header().Set("Content-Disposition", mime.FormatMediaType("inline", map[string]string{"filename": path.Base(p)}))
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", info.ModTime(), f)
}

// openRegular opens a file whose reading ends. It does not wait for whoever
// might write to a pipe.
func openRegular(p string) (*os.File, error) {
	f, err := os.OpenFile(p, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil && !info.Mode().IsRegular() {
		err = httpErrorf(http.StatusBadRequest, "%s is not a regular file", p)
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// written is one line of the answer to an upload.
type written struct {
	Name string `json:"name"`
	Path string `json:"path"`
	Type string `json:"type"`
}

func (g *Guest) serveUpload(w http.ResponseWriter, r *http.Request) {
	u, err := g.fileUser(r)
	if err != nil {
		answerError(w, err)
		return
	}
	var list []written
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	if kind == "multipart/form-data" {
		list, err = receiveParts(r, u)
	} else {
		list, err = receiveOne(r, u)
	}
	if err != nil {
		answerError(w, err)
		return
	}
	writeJSON(w, http.StatusOK, list)
}

func receiveOne(r *http.Request, u user) ([]written, error) {
	asked := r.URL.Query().Get("path")
	if asked == "" {
		return nil, httpErrorf(http.StatusBadRequest, "no path")
	}
	line, err := replaceFile(u.resolve(asked), u, r.Body)
	return []written{line}, err
}

// receiveParts writes the parts named "file". A part's file name carries the
// whole path, directories included, unless the query has one.
func receiveParts(r *http.Request, u user) ([]written, error) {
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
		p := asked
		if p == "" {
			p = wholeName(part)
		}
		if p == "" {
			return nil, httpErrorf(http.StatusBadRequest, "a part has no file name")
		}
		p = u.resolve(p)
		if seen[p] {
			return nil, httpErrorf(http.StatusBadRequest, "%s is in the request twice", p)
		}
		seen[p] = true
		line, err := replaceFile(p, u, part)
		if err != nil {
			return nil, err
		}
		list = append(list, line)
	}
}

// wholeName returns a part's file name with its directories, which Go's own
// method cuts off.
func wholeName(part *multipart.Part) string {
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil {
		return ""
	}
	return params["filename"]
}

// replaceFile puts content at p, all of it or nothing, owned by u. Missing
// directories are made; the permissions of a file that is there are kept.
func replaceFile(p string, u user, content io.Reader) (written, error) {
	line := written{Name: path.Base(p), Path: p, Type: "file"}
	if real, err := filepath.EvalSymlinks(p); err == nil {
		p = real // a link stays one
	}
	mode := fs.FileMode(0o644)
	info, err := os.Stat(p)
	switch {
	case err == nil && info.IsDir():
		return line, httpErrorf(http.StatusBadRequest, "path is a directory: %s", p)
	case err == nil && !info.Mode().IsRegular():
		return line, httpErrorf(http.StatusBadRequest, "%s is not a regular file", p)
	case err == nil:
		mode = info.Mode().Perm()
	}
	if err := makeDirs(path.Dir(p), u); err != nil {
		return line, err
	}
	f, err := os.CreateTemp(path.Dir(p), ".sandpit-*")
	if err != nil {
		return line, err
	}
	if err := fill(f, content, mode, u); err != nil {
		return line, errors.Join(err, os.Remove(f.Name()))
	}
	if err := os.Rename(f.Name(), p); err != nil {
		return line, errors.Join(err, os.Remove(f.Name()))
	}
	return line, nil
}

func fill(f *os.File, content io.Reader, mode fs.FileMode, u user) error {
	_, err := io.CopyBuffer(struct{ io.Writer }{f}, content, make([]byte, 256<<10))
	if err == nil {
		err = f.Chown(u.uid, u.gid)
	}
	if err == nil {
		err = f.Chmod(mode)
	}
	return errors.Join(err, f.Close())
}
