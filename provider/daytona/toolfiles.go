package daytona

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// fileInfo is a file as the toolbox describes it.
type fileInfo struct {
	Name        string `json:"name"`
	Path        string `json:"path"`
	IsDir       bool   `json:"isDir"`
	Size        int64  `json:"size"`
	Mode        string `json:"mode"`
	Permissions string `json:"permissions"`
	Owner       string `json:"owner"`
	Group       string `json:"group"`
	ModTime     string `json:"modTime"`
	ModifiedAt  string `json:"modifiedAt"`
}

// toFile converts a file whose path is known.
func (f fileInfo) toFile(full string) sandpit.File {
	out := sandpit.File{Name: path.Base(full), Path: full, Size: f.Size, Owner: f.Owner, Group: f.Group, ModifiedAt: parseTime(f.ModifiedAt)}
	if out.ModifiedAt.IsZero() {
		out.ModifiedAt, _ = time.Parse("2006-01-02 15:04:05.999999999 -0700 MST", f.ModTime) // another form stays unknown
	}
	if bits, err := strconv.ParseUint(f.Permissions, 8, 32); err == nil {
		out.Mode = fs.FileMode(bits) & fs.ModePerm
	}
	switch {
	case f.IsDir:
		out.Mode |= fs.ModeDir
	case strings.HasPrefix(f.Mode, "L") || strings.HasPrefix(f.Mode, "l"):
		out.Mode |= fs.ModeSymlink
	case f.Mode != "" && !strings.HasPrefix(f.Mode, "-"):
		out.Mode |= fs.ModeIrregular
	}
	return out
}

func pathQuery(full string) url.Values { return url.Values{"path": {full}} }

// fileError adds the operation to an error of a file call.
func fileError(doing, file string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %s: %w", doing, file, err)
}

// Stat implements sandpit.Files. The toolbox does not report the targets of links.
func (g *toolGuest) Stat(ctx context.Context, user, file string) (sandpit.File, error) {
	full, err := g.resolve(user, file)
	if err != nil {
		return sandpit.File{}, fileError("stat", file, err)
	}
	var info fileInfo
	if err := g.b.readJSON(ctx, toolCall{method: http.MethodGet, path: "/files/info", query: pathQuery(full)}, &info); err != nil {
		return sandpit.File{}, fileError("stat", file, err)
	}
	return info.toFile(full), nil
}

// ListDir implements sandpit.Files. It lists each level with a call of its own.
func (g *toolGuest) ListDir(ctx context.Context, user, file string, depth int) ([]sandpit.File, error) {
	full, err := g.resolve(user, file)
	if err != nil {
		return nil, fileError("list", file, err)
	}
	about, err := g.Stat(ctx, user, full)
	if err == nil && !about.Mode.IsDir() {
		err = sandpit.Errorf(sandpit.Invalid, "not a directory")
	}
	if err != nil {
		return nil, fileError("list", file, err)
	}
	list, err := g.listLevel(ctx, full, depth, nil)
	return list, fileError("list", file, err)
}

// maxListed bounds a list of files.
const maxListed = 100_000

func (g *toolGuest) listLevel(ctx context.Context, dir string, depth int, list []sandpit.File) ([]sandpit.File, error) {
	var infos []fileInfo
	if err := g.b.readJSON(ctx, toolCall{method: http.MethodGet, path: "/files", query: pathQuery(dir)}, &infos); err != nil {
		return nil, err
	}
	for _, info := range infos {
		if info.Name == "" || strings.ContainsRune(info.Name, '/') || info.Name == "." || info.Name == ".." {
			return nil, sandpit.Errorf(sandpit.Internal, "the toolbox reports the invalid file name %.100q", info.Name)
		}
		if len(list) >= maxListed {
			return nil, sandpit.Errorf(sandpit.Exhausted, "more than %d files", maxListed)
		}
		f := info.toFile(path.Join(dir, info.Name))
		list = append(list, f)
		if f.Mode.IsDir() && depth > 1 {
			var err error
			if list, err = g.listLevel(ctx, f.Path, depth-1, list); err != nil {
				return nil, err
			}
		}
	}
	return list, nil
}

// ReadFile implements sandpit.Files.
func (g *toolGuest) ReadFile(ctx context.Context, user, file string) (io.ReadCloser, error) {
	body, err := g.openFile(ctx, user, file)
	return body, fileError("read", file, err)
}

func (g *toolGuest) openFile(ctx context.Context, user, file string) (io.ReadCloser, error) {
	about, err := g.Stat(ctx, user, file)
	switch {
	case err != nil:
		return nil, err
	case !about.Mode.IsRegular():
		return nil, sandpit.Errorf(sandpit.Invalid, "not a regular file")
	}
	res, err := g.b.send(ctx, toolCall{method: http.MethodGet, path: "/files/download", query: pathQuery(about.Path)}) //nolint:bodyclose // the caller closes it
	if err != nil {
		return nil, err
	}
	return explainedBody{res.Body, g.b, ctx}, nil
}

// ReadRange implements sandpit.Files. The toolbox sends the file from its beginning.
func (g *toolGuest) ReadRange(ctx context.Context, user, file string, offset, length int64) (io.ReadCloser, error) {
	if offset < 0 || length < 0 || offset > math.MaxInt64-length {
		return nil, sandpit.Errorf(sandpit.Invalid, "read %s: %d bytes from %d", file, length, offset)
	}
	body, err := g.openFile(ctx, user, file)
	if err == nil {
		if _, err = io.CopyN(io.Discard, body, offset); errors.Is(err, io.EOF) {
			err = nil
		}
	}
	if err != nil {
		if body != nil {
			_ = body.Close() // the error says what failed
		}
		return nil, fileError("read", file, err)
	}
	return struct {
		io.Reader
		io.Closer
	}{io.LimitReader(body, length), body}, nil
}

// script runs a script on files, and returns its error in the words of its output.
func (g *toolGuest) script(ctx context.Context, text string) error {
	_, err := g.runFiles(ctx, text)
	return err
}

// runFiles is script with the output.
func (g *toolGuest) runFiles(ctx context.Context, text string) (string, error) {
	out, err := g.b.execute(ctx, text, g.b.p.o.StartTimeout)
	if err != nil {
		return "", err
	}
	if out.ExitCode == 0 {
		return out.Result, nil
	}
	said := cleanText(out.Result)
	code := sandpit.Internal
	switch lower := strings.ToLower(said); {
	case strings.Contains(lower, "no such file"):
		code = sandpit.NotFound
	case strings.Contains(lower, "permission denied"), strings.Contains(lower, "read-only file system"), strings.Contains(lower, "not permitted"):
		code = sandpit.PermissionDenied
	case strings.Contains(lower, "no space left"), strings.Contains(lower, "quota exceeded"):
		code = sandpit.Exhausted
	case strings.Contains(lower, "file exists"), strings.Contains(lower, "not a directory"), strings.Contains(lower, "is a directory"), strings.Contains(lower, "file name too long"):
		code = sandpit.Invalid
	}
	return "", sandpit.Errorf(code, "%s", said)
}

// WriteFile implements sandpit.Files: it uploads a file beside the old one, and replaces that.
func (g *toolGuest) WriteFile(ctx context.Context, user, file string, content io.Reader, o sandpit.WriteOptions) error {
	full, err := g.resolve(user, file)
	switch {
	case err != nil:
		return fileError("write", file, err)
	case len(o.Metadata) > 0:
		return refuseTool("keep metadata of " + file)
	}
	about, err := g.Stat(ctx, user, full)
	switch {
	case err == nil && about.Mode.IsDir():
		return sandpit.Errorf(sandpit.Invalid, "write %s: it is a directory", file)
	case err != nil && sandpit.CodeOf(err) != sandpit.NotFound:
		return fileError("write", file, err)
	}
	mode := o.Mode.Perm()
	if mode == 0 {
		mode = 0o644
		if err == nil {
			mode = about.Mode.Perm()
		}
	}
	if full, err = g.makeParent(ctx, full); err != nil {
		return fileError("write", file, err)
	}
	temporary := path.Join(path.Dir(full), ".sandpit-"+rand.Text())
	if err = g.b.upload(ctx, temporary, content); err == nil {
		err = g.script(ctx, fmt.Sprintf("chmod %o %s && mv -f -- %s %s", mode, quoteShell(temporary), quoteShell(temporary), quoteShell(full)))
	}
	if err != nil {
		clean, cancel := g.b.p.cleanupContext(ctx)
		defer cancel()
		err = errors.Join(err, g.script(clean, "rm -f -- "+quoteShell(temporary)))
	}
	return fileError("write", file, err)
}

// makeParent makes the directory of a file, and returns where the file's path leads, so that it is
// written to the target of a link.
func (g *toolGuest) makeParent(ctx context.Context, full string) (string, error) {
	out, err := g.runFiles(ctx, "mkdir -p -- "+quoteShell(path.Dir(full))+" && { readlink -f -- "+quoteShell(full)+" || :; }")
	if err != nil {
		return "", err
	}
	if real := strings.TrimSuffix(out, "\n"); path.IsAbs(real) && path.Clean(real) == real {
		return real, nil
	}
	return full, nil // a link that leads nowhere
}

// MakeDir implements sandpit.Files.
func (g *toolGuest) MakeDir(ctx context.Context, user, file string) error {
	full, err := g.resolve(user, file)
	if err == nil {
		if _, missing := g.Stat(ctx, user, full); missing == nil {
			err = sandpit.Errorf(sandpit.AlreadyExists, "it exists")
		} else if sandpit.CodeOf(missing) != sandpit.NotFound {
			err = missing
		}
	}
	if err == nil {
		query := pathQuery(full)
		query.Set("mode", "0755")
		err = g.script(ctx, "mkdir -p -- "+quoteShell(path.Dir(full)))
		if err == nil {
			err = g.b.readNothing(ctx, toolCall{method: http.MethodPost, path: "/files/folder", query: query})
		}
	}
	return fileError("make directory", file, err)
}

// Move implements sandpit.Files.
func (g *toolGuest) Move(ctx context.Context, user, from, to string) error {
	source, err := g.resolve(user, from)
	if err != nil {
		return fileError("move", from, err)
	}
	target, err := g.resolve(user, to)
	if err == nil {
		s := quoteShell(source)
		err = g.script(ctx, "if [ ! -e "+s+" ] && [ ! -L "+s+" ]; then echo 'no such file or directory'; exit 1; fi; mkdir -p -- "+quoteShell(path.Dir(target)))
	}
	if err == nil {
		err = g.b.readNothing(ctx, toolCall{method: http.MethodPost, path: "/files/move", query: url.Values{"source": {source}, "destination": {target}}})
	}
	return fileError("move", from, err)
}

// Remove implements sandpit.Files.
func (g *toolGuest) Remove(ctx context.Context, user, file string) error {
	full, err := g.resolve(user, file)
	if err == nil && full == "/" {
		err = sandpit.Errorf(sandpit.Invalid, "it is the root")
	}
	if err == nil {
		query := pathQuery(full)
		query.Set("recursive", "true")
		if err = g.b.readNothing(ctx, toolCall{method: http.MethodDelete, path: "/files", query: query}); sandpit.CodeOf(err) == sandpit.NotFound {
			err = nil
		}
	}
	return fileError("remove", file, err)
}

// ReadTree implements sandpit.Files: it packs the tree into a file, which it removes when the stream
// is closed.
func (g *toolGuest) ReadTree(ctx context.Context, user, file string) (io.ReadCloser, error) {
	about, err := g.Stat(ctx, user, file)
	if err != nil {
		return nil, fileError("read tree", file, err)
	}
	dir, member := about.Path, "./"
	if !about.Mode.IsDir() {
		dir, member = path.Dir(about.Path), path.Base(about.Path)
	}
	temporary := "/tmp/.sandpit-" + rand.Text() + ".tar"
	remove := func() error {
		clean, cancel := g.b.p.cleanupContext(ctx)
		defer cancel()
		return g.script(clean, "rm -f -- "+quoteShell(temporary))
	}
	err = g.script(ctx, "cd -- "+quoteShell(dir)+" && tar -cf "+quoteShell(temporary)+" -- "+quoteShell(member))
	if err == nil {
		var res *http.Response
		if res, err = g.b.send(ctx, toolCall{method: http.MethodGet, path: "/files/download", query: pathQuery(temporary)}); err == nil { //nolint:bodyclose // newTreeBody takes it
			return newTreeBody(explainedBody{res.Body, g.b, ctx}, remove), nil
		}
	}
	return nil, fileError("read tree", file, errors.Join(err, remove()))
}

// treeBody is a stream whose file is removed when it is closed.
type treeBody struct {
	*io.PipeReader

	body   io.Closer
	copied chan struct{}
	remove func() error
}

// newTreeBody returns a tar stream without sockets, devices and pipes.
func newTreeBody(body io.ReadCloser, remove func() error) treeBody {
	r, w := io.Pipe()
	t := treeBody{r, body, make(chan struct{}), remove}
	go func() { // ends when the stream does, or is closed
		defer close(t.copied)
		_ = w.CloseWithError(copyFiles(w, body)) // never fails
	}()
	return t
}

// copyFiles copies the files, directories and links of a tar stream.
func copyFiles(to io.Writer, from io.Reader) error {
	r, w := tar.NewReader(from), tar.NewWriter(to)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return w.Close()
		}
		if err != nil {
			return err
		}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeDir, tar.TypeSymlink, tar.TypeLink:
		default:
			continue
		}
		h.Format = tar.FormatUnknown // the writer chooses one that fits
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := io.Copy(w, r); err != nil { //nolint:gosec // the caller reads as much as it wants
			return err
		}
	}
}

// Close implements io.Closer.
func (t treeBody) Close() error {
	err := errors.Join(t.PipeReader.Close(), t.body.Close())
	<-t.copied
	return errors.Join(err, t.remove())
}

// maxTree bounds a tar stream for WriteTree, in bytes: it is checked before it is uploaded.
const maxTree = 256 << 20

// WriteTree implements sandpit.Files. It checks the whole stream first, so that nothing of an invalid
// one is unpacked.
func (g *toolGuest) WriteTree(ctx context.Context, user, file string, stream io.Reader) error {
	full, err := g.resolve(user, file)
	if err != nil {
		return fileError("write tree", file, err)
	}
	data, err := readWithin(ctx, io.LimitReader(stream, maxTree+1))
	if err == nil && len(data) > maxTree {
		err = sandpit.Errorf(sandpit.Exhausted, "the stream has more than %d MiB", maxTree>>20)
	}
	if err == nil {
		err = checkTree(data)
	}
	if err != nil {
		return fileError("write tree", file, err)
	}
	temporary := "/tmp/.sandpit-" + rand.Text() + ".tar"
	if err = g.b.upload(ctx, temporary, bytes.NewReader(data)); err == nil {
		err = g.script(ctx, "mkdir -p -- "+quoteShell(full)+" && tar -xopf "+quoteShell(temporary)+" -C "+quoteShell(full))
	}
	clean, cancel := g.b.p.cleanupContext(ctx)
	defer cancel()
	return fileError("write tree", file, errors.Join(err, g.script(clean, "rm -f -- "+quoteShell(temporary))))
}

// readWithin reads everything, or until ctx ends.
func readWithin(ctx context.Context, from io.Reader) (data []byte, err error) {
	done := make(chan struct{})
	go func() { // ends with the reader's next data
		defer close(done)
		data, err = io.ReadAll(from)
	}()
	select {
	case <-done:
		return data, err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// checkTree refuses a tar stream with a member that could be written outside of its directory, or
// through a link.
func checkTree(data []byte) error {
	r := tar.NewReader(bytes.NewReader(data))
	links := make(map[string]bool)
	for count := 0; ; count++ {
		h, err := r.Next()
		switch {
		case errors.Is(err, io.EOF) && (count > 0 || len(data) > 0):
			return nil
		case err != nil:
			return sandpit.Errorf(sandpit.Invalid, "not a tar stream: %w", err)
		}
		name := path.Clean(h.Name)
		if path.IsAbs(h.Name) || name == ".." || strings.HasPrefix(name, "../") {
			return sandpit.Errorf(sandpit.Invalid, "member %.200q lies outside of the directory", h.Name)
		}
		for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
			if links[dir] {
				return sandpit.Errorf(sandpit.Invalid, "member %.200q leads through a link", h.Name)
			}
		}
		switch h.Typeflag {
		case tar.TypeReg, tar.TypeDir:
		case tar.TypeSymlink:
			links[name] = true
		case tar.TypeLink:
			target := path.Clean(h.Linkname)
			if path.IsAbs(h.Linkname) || target == ".." || strings.HasPrefix(target, "../") || links[target] {
				return sandpit.Errorf(sandpit.Invalid, "member %.200q links to a file outside of the directory", h.Name)
			}
		default:
			return sandpit.Errorf(sandpit.Invalid, "member %.200q is neither a file, a directory nor a link", h.Name)
		}
	}
}

// Watch implements sandpit.Files. The toolbox API has no such call.
func (g *toolGuest) Watch(ctx context.Context, _, _ string, _ sandpit.WatchOptions) (sandpit.Watcher, error) {
	if err := g.b.checkUsable(ctx); err != nil {
		return nil, err
	}
	return nil, refuseTool("watch a directory")
}
