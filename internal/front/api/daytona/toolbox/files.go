package toolbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// fileHandlers serve the calls on files.
type fileHandlers struct{}

// registerFiles adds the file calls.
func (s *Server) registerFiles(mux api.Router) {
	for pattern, h := range map[string]handler{
		"GET /files":                fileHandlers{}.listFiles,
		"DELETE /files":             fileHandlers{}.deleteFile,
		"GET /files/info":           fileHandlers{}.describeFile,
		"POST /files/folder":        fileHandlers{}.createFolder,
		"POST /files/move":          fileHandlers{}.moveFile,
		"POST /files/permissions":   fileHandlers{}.setPermissions,
		"POST /files/bulk-upload":   fileHandlers{}.uploadFiles,
		"POST /files/bulk-download": fileHandlers{}.downloadFiles,
		"POST /files/upload":        fileHandlers{}.uploadFile,
		"GET /files/download":       fileHandlers{}.downloadFile,
		"POST /files/upload-v2":     fileHandlers{}.uploadDescribed,
		"GET /files/find":           fileHandlers{}.findInFiles,
		"GET /files/search":         fileHandlers{}.searchFiles,
		"POST /files/replace":       fileHandlers{}.replaceInFiles,
	} {
		s.handle(mux, pattern, h)
	}
}

// fileInfo describes a file.
type fileInfo struct {
	Name  string `json:"name"`
	Path  string `json:"path"`
	IsDir bool   `json:"isDir"`
	Size  int64  `json:"size"`
	// Mode is the mode as ls writes it, and Permissions its permissions in octal.
	Mode        string `json:"mode"`
	Permissions string `json:"permissions"`
	Owner       string `json:"owner"`
	Group       string `json:"group"`
	// ModTime is ModifiedAt in the layout of time.Time.String, for earlier clients.
	ModTime    string `json:"modTime"`
	ModifiedAt string `json:"modifiedAt"`
}

func newFileInfo(f sandpit.File) fileInfo {
	at := f.ModifiedAt.UTC()
	return fileInfo{
		Name: f.Name, Path: f.Path, IsDir: f.Mode.IsDir(), Size: f.Size, Mode: f.Mode.String(), Permissions: fmt.Sprintf("%04o", f.Mode.Perm()),
		Owner: f.Owner, Group: f.Group, ModTime: at.String(), ModifiedAt: at.Format(time.RFC3339Nano),
	}
}

// maxDepth is the maximum depth of a list.
const maxDepth = 1000

func (fileHandlers) listFiles(ctx context.Context, c *call) error {
	query := c.r.URL.Query()
	p, err := c.filePath(ctx, "path", cmp.Or(query.Get("path"), "."))
	if err != nil {
		return err
	}
	depth := 1
	if text := query.Get("depth"); text != "" {
		if depth, err = strconv.Atoi(text); err != nil || depth < 1 || depth > maxDepth {
			return sandpit.Errorf(sandpit.Invalid, "depth %.20q: want 1 to %d", text, maxDepth)
		}
	}
	files, err := c.guest.ListDir(ctx, "", p, depth)
	if err != nil {
		return toFileError(err)
	}
	list := make([]fileInfo, len(files))
	for i, f := range files {
		list[i] = newFileInfo(f)
	}
	return c.writeJSON(http.StatusOK, list)
}

func (fileHandlers) describeFile(ctx context.Context, c *call) error {
	p, err := c.queryPath(ctx, "path")
	if err != nil {
		return err
	}
	f, err := c.statTarget(ctx, p)
	if err != nil {
		return err
	}
	f.Name, f.Path = path.Base(p), p // not those of the target of a link
	return c.writeJSON(http.StatusOK, newFileInfo(f))
}

func (fileHandlers) deleteFile(ctx context.Context, c *call) error {
	p, err := c.queryPath(ctx, "path")
	if err != nil {
		return err
	}
	f, err := c.guest.Stat(ctx, "", p)
	if err != nil {
		return toFileError(err)
	}
	if f.Mode.IsDir() && c.r.URL.Query().Get("recursive") != "true" {
		return sandpit.Errorf(sandpit.Invalid, "delete %s: it is a directory, and recursive is not true", p)
	}
	if err := c.guest.Remove(ctx, "", p); err != nil {
		return toFileError(err)
	}
	return c.writeEmpty(http.StatusNoContent)
}

func (fileHandlers) createFolder(ctx context.Context, c *call) error {
	p, err := c.queryPath(ctx, "path")
	if err != nil {
		return err
	}
	mode, err := parseMode(c.r.URL.Query().Get("mode"))
	if err != nil {
		return err
	}
	if err := c.guest.MakeDir(ctx, "", p); err != nil && sandpit.CodeOf(err) != sandpit.AlreadyExists {
		return toFileError(err)
	}
	f, err := c.statTarget(ctx, p)
	switch {
	case err != nil:
		return err
	case !f.Mode.IsDir():
		return sandpit.Errorf(sandpit.AlreadyExists, "create folder %s: it exists and is not a directory", p)
	case mode != "" && formatMode(f.Mode.Perm()) != mode:
		err = c.changePermissions(ctx, p, mode, "", "")
	}
	if err != nil {
		return err
	}
	return c.writeEmpty(http.StatusCreated)
}

// parseMode checks permissions in octal, and returns them in the form of formatMode. "" is the
// default.
func parseMode(text string) (string, error) {
	if text == "" {
		return "", nil
	}
	bits, err := strconv.ParseUint(text, 8, 32)
	if err != nil || bits > 0o7777 {
		return "", sandpit.Errorf(sandpit.Invalid, "mode %.20q: want an octal number from 0 to 7777", text)
	}
	return formatMode(fs.FileMode(bits)), nil
}

func formatMode(mode fs.FileMode) string { return strconv.FormatUint(uint64(mode), 8) }

func (fileHandlers) moveFile(ctx context.Context, c *call) error {
	from, err := c.queryPath(ctx, "source")
	if err != nil {
		return err
	}
	to, err := c.queryPath(ctx, "destination")
	if err != nil {
		return err
	}
	if err := c.guest.Move(ctx, "", from, to); err != nil {
		return toFileError(err)
	}
	return c.writeEmpty(http.StatusOK)
}

func (fileHandlers) setPermissions(ctx context.Context, c *call) error {
	p, err := c.queryPath(ctx, "path")
	if err != nil {
		return err
	}
	query := c.r.URL.Query()
	mode, err := parseMode(query.Get("mode"))
	if err != nil {
		return err
	}
	if err := c.changePermissions(ctx, p, mode, query.Get("owner"), query.Get("group")); err != nil {
		return err
	}
	return c.writeEmpty(http.StatusOK)
}

// changePermissions changes the mode, owner and group of a file with the sandbox's own chmod and
// chown; "" leaves a value unchanged. File calls must be allowed to use the file.
func (c *call) changePermissions(ctx context.Context, p, mode, owner, group string) error {
	if strings.ContainsAny(owner+group, ": \x00") {
		return sandpit.Errorf(sandpit.Invalid, "owner %.50q, group %.50q: want names or numbers", owner, group)
	}
	if _, err := c.statTarget(ctx, p); err != nil {
		return err
	}
	var commands [][]string
	if owner != "" || group != "" {
		name := owner
		if group != "" {
			name += ":" + group
		}
		commands = append(commands, []string{"chown", "--", name, p})
	}
	if mode != "" { // last, because chown clears bits
		commands = append(commands, []string{"chmod", "--", mode, p})
	}
	for _, args := range commands {
		if err := c.runTool(ctx, args); err != nil {
			return err
		}
	}
	return nil
}

// runTool runs a program that changes a file.
func (c *call) runTool(ctx context.Context, args []string) error {
	result, err := c.runProgram(ctx, sandpit.Command{Args: args})
	switch {
	case sandpit.CodeOf(err) == sandpit.NotFound:
		return sandpit.Errorf(sandpit.Unsupported, "the sandbox has no program %s", args[0])
	case err != nil || result.ExitCode == 0:
		return err
	}
	said := strings.TrimSpace(result.Stderr)
	switch {
	case strings.Contains(said, "not permitted"), strings.Contains(said, "Permission denied"):
		return withCode("FILE_ACCESS_DENIED", sandpit.Errorf(sandpit.PermissionDenied, "%.400s", said))
	case strings.Contains(said, "No such file"):
		return withCode("FILE_NOT_FOUND", sandpit.Errorf(sandpit.NotFound, "%.400s", said))
	}
	return sandpit.Errorf(sandpit.Invalid, "%s ended with exit status %d: %.400s", args[0], result.ExitCode, said)
}

func (fileHandlers) downloadFile(ctx context.Context, c *call) error {
	p, err := c.queryPath(ctx, "path")
	if err != nil {
		return err
	}
	f, err := c.openFile(ctx, p)
	if err != nil {
		return err
	}
	defer f.Close()
	h := c.w.Header()
	setSafeHeaders(h)
	h.Set("Content-Type", "application/octet-stream")
	h.Set("Content-Disposition", attachmentHeader(path.Base(p)))
	if f.size > 0 {
		h.Set("Content-Length", strconv.FormatInt(f.size, 10))
	}
	c.w.WriteHeader(http.StatusOK)
	_, err = io.Copy(c.w, f)
	return err
}

// openedFile is a file that is being read.
type openedFile struct {
	io.ReadCloser

	// size is 0 if the length is not known in advance, as for files of /proc.
	size int64
}

// openFile opens a regular file. If its size is known, reading it returns as many bytes, or an
// error.
func (c *call) openFile(ctx context.Context, p string) (openedFile, error) {
	f, err := c.statTarget(ctx, p)
	if err != nil {
		return openedFile{}, err
	}
	if !f.Mode.IsRegular() {
		return openedFile{}, withCode(codeFilePath, sandpit.Errorf(sandpit.Invalid, "read %s: it is not a regular file", p))
	}
	if f.Size == 0 {
		r, err := c.guest.ReadFile(ctx, "", p)
		return openedFile{ReadCloser: r}, toFileError(err)
	}
	r, err := c.guest.ReadRange(ctx, "", p, 0, f.Size)
	if err != nil {
		return openedFile{}, toFileError(err)
	}
	return openedFile{ReadCloser: &exactReader{ReadCloser: r, rest: f.Size}, size: f.Size}, nil
}

// exactReader is a reader whose length was sent. A file that has become shorter is an error.
type exactReader struct {
	io.ReadCloser

	rest int64
}

// Read implements io.Reader.
func (r *exactReader) Read(b []byte) (int, error) {
	n, err := r.ReadCloser.Read(b)
	if r.rest -= int64(n); errors.Is(err, io.EOF) && r.rest > 0 {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// downloadRequest is the body of a download of several files.
type downloadRequest struct {
	Paths []string `json:"paths"`
}

// maxDownloads is the maximum number of files of one download.
const maxDownloads = 10_000

// downloadFiles responds with a part for each file: "file" with its content, or "error" with the
// reason, which has the form of an error response.
func (fileHandlers) downloadFiles(ctx context.Context, c *call) error {
	var req downloadRequest
	if err := c.readBody(&req); err != nil {
		return err
	}
	if len(req.Paths) == 0 || len(req.Paths) > maxDownloads {
		return sandpit.Errorf(sandpit.Invalid, "paths: %d, want 1 to %d", len(req.Paths), maxDownloads)
	}
	w := newPartWriter(c.w)
	setSafeHeaders(c.w.Header())
	c.w.Header().Set("Content-Type", w.contentType())
	c.w.WriteHeader(http.StatusOK)
	for _, name := range req.Paths {
		if err := c.sendFile(ctx, w, name); err != nil {
			return err
		}
	}
	return w.Close()
}

// sendFile writes the part of one file. It returns errors that leave the response incomplete.
func (c *call) sendFile(ctx context.Context, w *partWriter, name string) error {
	p, err := c.filePath(ctx, "path", name)
	var f openedFile
	if err == nil {
		f, err = c.openFile(ctx, p)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		text, jsonErr := json.Marshal(problemOf(ctx, c.r, err))
		if jsonErr != nil {
			return jsonErr
		}
		part, partErr := w.createPart("error", name, "application/json", int64(len(text)))
		if partErr == nil {
			_, partErr = part.Write(text)
		}
		return partErr
	}
	defer f.Close()
	part, err := w.createPart("file", name, "application/octet-stream", f.size)
	if err != nil {
		return err
	}
	_, err = io.Copy(part, f)
	return err
}
