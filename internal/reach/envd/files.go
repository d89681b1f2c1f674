package envd

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem"
	"github.com/sandpit-dev/sandpit/internal/reach/gen/filesystem/filesystemconnect"
)

// files implements sandpit.Files.
type files struct {
	http  *http.Client
	calls filesystemconnect.FilesystemClient
	lists filesystemconnect.FilesystemClient // for larger responses
	// within has the directories that no call leaves; empty means no bounds.
	within []string
}

const (
	withinHeader = "Sandpit-Within"
	modeHeader   = "Sandpit-Mode"
	// metadataHeader is the prefix of headers with a file's metadata.
	metadataHeader = "X-Metadata-"
)

// Metadata that is valid in a header, and does not change in lower case.
var (
	metadataKey   = pattern.New("^[a-z0-9!#$%&'*+.^_`|~-]+$")
	metadataValue = pattern.New("^[ -~]*$")
)

// Within implements sandpit.Confiner.
func (f *files) Within(dirs ...string) (sandpit.Files, error) {
	if len(dirs) == 0 {
		return nil, sandpit.Errorf(sandpit.Invalid, "confine file calls: no directory")
	}
	for _, dir := range dirs {
		if !path.IsAbs(dir) || strings.ContainsAny(dir, "\x00\r\n") {
			return nil, sandpit.Errorf(sandpit.Invalid, "confine file calls: %q is not an absolute path", dir)
		}
	}
	return &files{http: f.http, calls: f.calls, lists: f.lists, within: append([]string(nil), dirs...)}, nil
}

// setHeaders sets the headers of every call.
func (f *files) setHeaders(header http.Header, user string) {
	asUser(header, user)
	for _, dir := range f.within {
		header.Add(withinHeader, dir)
	}
}

// The kinds of content that are transferred over plain HTTP.
const (
	oneFile   = "/files"
	wholeTree = "/tree"
)

// newDownload returns a request for the content of a file or tree.
func (f *files) newDownload(ctx context.Context, what, user, p string) (*http.Request, error) {
	return f.newRequest(ctx, http.MethodGet, contentURL(what, user, p))
}

// newUpload returns a request that replaces the content of a file or tree. The caller sends
// it with sendContent.
func (f *files) newUpload(ctx context.Context, what, user, p string) (*http.Request, error) {
	return f.newRequest(ctx, http.MethodPost, contentURL(what, user, p))
}

// sendContent sends a request with content, and reports whether all of it was sent.
// Afterwards it does not use the content any more, except for a Read that is still pending
// long after the end of the context.
func (f *files) sendContent(r *http.Request, content io.Reader) (all bool, err error) {
	body := newContentBody(r.Context(), content)
	r.Body = body
	res, err := doRequest(f.http, r)
	if err == nil {
		err = res.Body.Close()
	}
	all, own := body.stopReading(r.Context())
	if own != nil {
		return all, own // independent of the response
	}
	return all, err
}

func contentURL(what, user, p string) string {
	query := url.Values{"path": {p}}
	if user != "" {
		query.Set("username", user)
	}
	return base + what + "?" + query.Encode()
}

func (f *files) newRequest(ctx context.Context, method, target string) (*http.Request, error) {
	r, err := http.NewRequestWithContext(ctx, method, target, http.NoBody)
	if err != nil {
		return nil, err
	}
	f.setHeaders(r.Header, "")
	r.Header.Set("Accept-Encoding", "identity") // the connection is local
	return r, nil
}

// ReadFile implements sandpit.Files.
func (f *files) ReadFile(ctx context.Context, user, p string) (io.ReadCloser, error) {
	r, err := f.newDownload(ctx, oneFile, user, p)
	if err != nil {
		return nil, err
	}
	res, err := doRequest(f.http, r)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", p, err)
	}
	return responseBody(ctx, res), nil
}

// ReadRange implements sandpit.Files.
func (f *files) ReadRange(ctx context.Context, user, p string, offset, length int64) (io.ReadCloser, error) {
	if offset < 0 || length < 0 || offset+length < 0 {
		return nil, sandpit.Errorf(sandpit.Invalid, "read %s: invalid range of %d bytes from offset %d", p, length, offset)
	}
	if length == 0 {
		return io.NopCloser(strings.NewReader("")), nil
	}
	r, err := f.newDownload(ctx, oneFile, user, p)
	if err != nil {
		return nil, err
	}
	r.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", offset, offset+length-1))
	res, err := doRequest(f.http, r, http.StatusRequestedRangeNotSatisfiable)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", p, err)
	}
	whole := responseBody(ctx, res)
	switch {
	case res.StatusCode == http.StatusPartialContent:
		return readCloser{io.LimitReader(whole, length), whole}, nil
	case res.StatusCode == http.StatusRequestedRangeNotSatisfiable, res.ContentLength == 0: // the range is empty
		return readCloser{strings.NewReader(""), whole}, nil
	}
	return nil, errors.Join(sandpit.Errorf(sandpit.Internal, "read %s: the guest does not support ranges", p), whole.Close())
}

type readCloser struct {
	io.Reader
	io.Closer
}

// responseBody returns the body of a response. Its read errors have a code.
func responseBody(ctx context.Context, res *http.Response) io.ReadCloser {
	return &responseReader{ctx: ctx, ReadCloser: res.Body}
}

type responseReader struct {
	io.ReadCloser

	ctx context.Context //nolint:containedctx // the context of the call
}

func (a *responseReader) Read(b []byte) (int, error) {
	n, err := a.ReadCloser.Read(b)
	if err != nil && !errors.Is(err, io.EOF) {
		err = transportError(a.ctx, err)
	}
	return n, err
}

// WriteFile implements sandpit.Files.
func (f *files) WriteFile(ctx context.Context, user, p string, content io.Reader, o sandpit.WriteOptions) error {
	r, err := f.newUpload(ctx, oneFile, user, p)
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/octet-stream")
	if o.Mode != 0 {
		r.Header.Set(modeHeader, strconv.FormatUint(uint64(o.Mode.Perm()), 8))
	}
	for key, value := range o.Metadata {
		if !metadataKey().MatchString(key) || !metadataValue().MatchString(value) {
			return sandpit.Errorf(sandpit.Invalid, "write %s: metadata %q: want a key of a-z, 0-9 and !#$%%&'*+-.^_`|~, and a value of printable ASCII", p, key)
		}
		r.Header.Set(metadataHeader+key, value)
	}
	all, err := f.sendContent(r, content)
	if err != nil {
		return fmt.Errorf("write %s: %w", p, err)
	}
	if !all {
		return sandpit.Errorf(sandpit.Internal, "write %s: the guest responded before it had read all content", p)
	}
	return nil
}

// Stat implements sandpit.Files.
func (f *files) Stat(ctx context.Context, user, p string) (sandpit.File, error) {
	req := connect.NewRequest(&filesystem.StatRequest{Path: p})
	f.setHeaders(req.Header(), user)
	res, err := f.calls.Stat(ctx, req)
	if err != nil {
		return sandpit.File{}, fmt.Errorf("stat %s: %w", p, callError(ctx, err))
	}
	file, err := fileOf(res.Msg.GetEntry())
	if err != nil {
		return file, fmt.Errorf("stat %s: %w", p, err)
	}
	return file, nil
}

// ListDir implements sandpit.Files.
func (f *files) ListDir(ctx context.Context, user, p string, depth int) ([]sandpit.File, error) {
	req := connect.NewRequest(&filesystem.ListDirRequest{Path: p, Depth: uint32(min(max(depth, 1), 1000))})
	f.setHeaders(req.Header(), user)
	res, err := f.lists.ListDir(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", p, callError(ctx, err))
	}
	list := make([]sandpit.File, 0, len(res.Msg.GetEntries()))
	for _, e := range res.Msg.GetEntries() {
		file, err := fileOf(e)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", p, err)
		}
		list = append(list, file)
	}
	return list, nil
}

// MakeDir implements sandpit.Files.
func (f *files) MakeDir(ctx context.Context, user, p string) error {
	req := connect.NewRequest(&filesystem.MakeDirRequest{Path: p})
	f.setHeaders(req.Header(), user)
	if _, err := f.calls.MakeDir(ctx, req); err != nil {
		return fmt.Errorf("create directory %s: %w", p, callError(ctx, err))
	}
	return nil
}

// Move implements sandpit.Files.
func (f *files) Move(ctx context.Context, user, from, to string) error {
	req := connect.NewRequest(&filesystem.MoveRequest{Source: from, Destination: to})
	f.setHeaders(req.Header(), user)
	if _, err := f.calls.Move(ctx, req); err != nil {
		return fmt.Errorf("move %s: %w", from, callError(ctx, err))
	}
	return nil
}

// Remove implements sandpit.Files.
func (f *files) Remove(ctx context.Context, user, p string) error {
	req := connect.NewRequest(&filesystem.RemoveRequest{Path: p})
	f.setHeaders(req.Header(), user)
	if _, err := f.calls.Remove(ctx, req); err != nil {
		return fmt.Errorf("remove %s: %w", p, callError(ctx, err))
	}
	return nil
}

// fileOf checks and converts a guest's description of a file. A name with a slash could lead
// a careless copy elsewhere.
func fileOf(e *filesystem.EntryInfo) (sandpit.File, error) {
	if !isPath(e.GetPath()) || e.GetSize() < 0 || !isName(e) || (e.SymlinkTarget != nil && !isTarget(e.GetSymlinkTarget())) {
		return sandpit.File{}, sandpit.Errorf(sandpit.Internal, "the guest describes an invalid file")
	}
	mode := fs.FileMode(e.GetMode()) & fs.ModePerm
	switch {
	case e.SymlinkTarget != nil:
		mode |= fs.ModeSymlink
	case e.GetType() == filesystem.FileType_FILE_TYPE_DIRECTORY:
		mode |= fs.ModeDir
	case e.GetType() != filesystem.FileType_FILE_TYPE_FILE:
		mode |= fs.ModeIrregular
	}
	return sandpit.File{
		Name: e.GetName(), Path: e.GetPath(), Mode: mode, Size: e.GetSize(),
		Owner: e.GetOwner(), Group: e.GetGroup(),
		ModifiedAt: modifiedAt(e), LinkTarget: e.GetSymlinkTarget(),
		Metadata: e.GetMetadata(),
	}, nil
}

// modifiedAt returns the modification time, or the zero time if JSON cannot represent it:
// any program may set such a time.
func modifiedAt(e *filesystem.EntryInfo) time.Time {
	if !e.GetModifiedTime().IsValid() {
		return time.Time{}
	}
	return e.GetModifiedTime().AsTime()
}

// maxName bounds a file's name, in bytes.
const maxName = 255

func isPath(p string) bool { return isTarget(p) && path.Clean(p) == p }

func isTarget(p string) bool { return path.IsAbs(p) && !strings.Contains(p, "\x00") }

func isName(e *filesystem.EntryInfo) bool {
	name := e.GetName()
	if e.GetPath() == "/" {
		return name == "/" || name == ""
	}
	return name != "" && len(name) <= maxName && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}
