package envd

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"path"
	"strings"

	"connectrpc.com/connect"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/gen/filesystem"
)

func fileURL(user, p string) string {
	query := url.Values{"path": {p}}
	if user != "" {
		query.Set("username", user)
	}
	return base + "/files?" + query.Encode()
}

// ReadFile implements sandpit.Files.
func (c *Client) ReadFile(ctx context.Context, user, p string) (io.ReadCloser, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, fileURL(user, p), nil)
	if err != nil {
		return nil, err
	}
	res, err := c.do(r)
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", p, err)
	}
	return res.Body, nil
}

// WriteFile implements sandpit.Files.
func (c *Client) WriteFile(ctx context.Context, user, p string, content io.Reader) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, fileURL(user, p), io.NopCloser(content))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/octet-stream")
	res, err := c.do(r)
	if err != nil {
		return fmt.Errorf("write %s: %w", p, err)
	}
	return res.Body.Close()
}

// Stat implements sandpit.Files.
func (c *Client) Stat(ctx context.Context, user, p string) (sandpit.File, error) {
	req := connect.NewRequest(&filesystem.StatRequest{Path: p})
	asUser(req.Header(), user)
	res, err := c.files.Stat(ctx, req)
	if err != nil {
		return sandpit.File{}, fmt.Errorf("stat %s: %w", p, callError(ctx, err))
	}
	f, err := fileOf(res.Msg.GetEntry())
	if err != nil {
		return f, fmt.Errorf("stat %s: %w", p, err)
	}
	return f, nil
}

// ListDir implements sandpit.Files.
func (c *Client) ListDir(ctx context.Context, user, p string, depth int) ([]sandpit.File, error) {
	req := connect.NewRequest(&filesystem.ListDirRequest{Path: p, Depth: uint32(min(max(depth, 1), 1000))})
	asUser(req.Header(), user)
	res, err := c.files.ListDir(ctx, req)
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", p, callError(ctx, err))
	}
	files := make([]sandpit.File, 0, len(res.Msg.GetEntries()))
	for _, e := range res.Msg.GetEntries() {
		f, err := fileOf(e)
		if err != nil {
			return nil, fmt.Errorf("list %s: %w", p, err)
		}
		files = append(files, f)
	}
	return files, nil
}

// MakeDir implements sandpit.Files.
func (c *Client) MakeDir(ctx context.Context, user, p string) error {
	req := connect.NewRequest(&filesystem.MakeDirRequest{Path: p})
	asUser(req.Header(), user)
	if _, err := c.files.MakeDir(ctx, req); err != nil {
		return fmt.Errorf("make %s: %w", p, callError(ctx, err))
	}
	return nil
}

// Move implements sandpit.Files.
func (c *Client) Move(ctx context.Context, user, from, to string) error {
	req := connect.NewRequest(&filesystem.MoveRequest{Source: from, Destination: to})
	asUser(req.Header(), user)
	if _, err := c.files.Move(ctx, req); err != nil {
		return fmt.Errorf("move %s: %w", from, callError(ctx, err))
	}
	return nil
}

// Remove implements sandpit.Files.
func (c *Client) Remove(ctx context.Context, user, p string) error {
	req := connect.NewRequest(&filesystem.RemoveRequest{Path: p})
	asUser(req.Header(), user)
	if _, err := c.files.Remove(ctx, req); err != nil {
		return fmt.Errorf("remove %s: %w", p, callError(ctx, err))
	}
	return nil
}

// fileOf checks what a guest says about a file. A name that is more than a name
// could lead a careless copy elsewhere.
func fileOf(e *filesystem.EntryInfo) (sandpit.File, error) {
	if e == nil || !path.IsAbs(e.GetPath()) || strings.Contains(e.GetPath(), "\x00") || e.GetSize() < 0 || !isName(e) {
		return sandpit.File{}, sandpit.Errorf(sandpit.Internal, "the guest describes a file that cannot be")
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
		ModifiedAt: e.GetModifiedTime().AsTime(), LinkTarget: e.GetSymlinkTarget(),
	}, nil
}

func isName(e *filesystem.EntryInfo) bool {
	name := e.GetName()
	if e.GetPath() == "/" {
		return name == "/" || name == ""
	}
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}
