package fake

import (
	"context"
	"io"
	"net/http"
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
)

// homeGuest resolves relative paths, and those that start with "~", in the sandbox's own home. The
// guest itself would use the home from the machine's list of users, which a test must not change.
type homeGuest struct {
	homeFiles
	sandpit.Journal

	client *envd.Client
}

var (
	_ sandpit.Guest       = (*homeGuest)(nil)
	_ sandpit.Confiner    = (*homeGuest)(nil)
	_ sandpit.Journal     = (*homeGuest)(nil)
	_ sandpit.GuestServer = (*homeGuest)(nil)
)

func newHomeGuest(c *envd.Client, home string) *homeGuest {
	return &homeGuest{homeFiles: homeFiles{files: c, home: home}, Journal: c, client: c}
}

// Start implements sandpit.Processes.
func (g *homeGuest) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	if cmd.Dir != "" {
		cmd.Dir = g.absolutePath(cmd.Dir)
	}
	return g.client.Start(ctx, cmd)
}

// Connect implements sandpit.Processes.
func (g *homeGuest) Connect(ctx context.Context, pid int, s sandpit.Streams) (sandpit.Process, error) {
	return g.client.Connect(ctx, pid, s)
}

// ListProcesses implements sandpit.Processes.
func (g *homeGuest) ListProcesses(ctx context.Context) ([]sandpit.ProcessInfo, error) {
	return g.client.ListProcesses(ctx)
}

// HTTP implements sandpit.GuestServer. The guest itself resolves relative paths in it.
func (g *homeGuest) HTTP() http.RoundTripper { return g.client.HTTP() }

// Observe implements sandpit.ObservedGuest.
func (g *homeGuest) Observe(o sandpit.GuestObserver) { g.client.Observe(o) }

// Observer implements sandpit.ObservedGuest.
func (g *homeGuest) Observer() sandpit.GuestObserver { return g.client.Observer() }

// Within implements sandpit.Confiner.
func (g *homeGuest) Within(dirs ...string) (sandpit.Files, error) {
	confined, err := g.client.Within(dirs...)
	if err != nil {
		return nil, err
	}
	return &homeFiles{files: confined, home: g.home}, nil
}

// homeFiles is a sandpit.Files with a home.
type homeFiles struct {
	files sandpit.Files
	home  string
}

// absolutePath returns the absolute form of a path. It does not change an empty path, which the guest
// handles.
func (f *homeFiles) absolutePath(p string) string {
	switch {
	case p == "" || path.IsAbs(p):
		return p
	case p == "~" || strings.HasPrefix(p, "~/"):
		return path.Join(f.home, p[1:])
	}
	return path.Join(f.home, p)
}

// ReadFile implements sandpit.Files.
func (f *homeFiles) ReadFile(ctx context.Context, user, p string) (io.ReadCloser, error) {
	return f.files.ReadFile(ctx, user, f.absolutePath(p))
}

// ReadRange implements sandpit.Files.
func (f *homeFiles) ReadRange(ctx context.Context, user, p string, offset, length int64) (io.ReadCloser, error) {
	return f.files.ReadRange(ctx, user, f.absolutePath(p), offset, length)
}

// WriteFile implements sandpit.Files.
func (f *homeFiles) WriteFile(ctx context.Context, user, p string, content io.Reader, o sandpit.WriteOptions) error {
	return f.files.WriteFile(ctx, user, f.absolutePath(p), content, o)
}

// Stat implements sandpit.Files.
func (f *homeFiles) Stat(ctx context.Context, user, p string) (sandpit.File, error) {
	return f.files.Stat(ctx, user, f.absolutePath(p))
}

// ListDir implements sandpit.Files.
func (f *homeFiles) ListDir(ctx context.Context, user, p string, depth int) ([]sandpit.File, error) {
	return f.files.ListDir(ctx, user, f.absolutePath(p), depth)
}

// MakeDir implements sandpit.Files.
func (f *homeFiles) MakeDir(ctx context.Context, user, p string) error {
	return f.files.MakeDir(ctx, user, f.absolutePath(p))
}

// Move implements sandpit.Files.
func (f *homeFiles) Move(ctx context.Context, user, from, to string) error {
	return f.files.Move(ctx, user, f.absolutePath(from), f.absolutePath(to))
}

// Remove implements sandpit.Files.
func (f *homeFiles) Remove(ctx context.Context, user, p string) error {
	return f.files.Remove(ctx, user, f.absolutePath(p))
}

// ReadTree implements sandpit.Files.
func (f *homeFiles) ReadTree(ctx context.Context, user, p string) (io.ReadCloser, error) {
	return f.files.ReadTree(ctx, user, f.absolutePath(p))
}

// WriteTree implements sandpit.Files.
func (f *homeFiles) WriteTree(ctx context.Context, user, p string, tar io.Reader) error {
	return f.files.WriteTree(ctx, user, f.absolutePath(p), tar)
}

// Watch implements sandpit.Files.
func (f *homeFiles) Watch(ctx context.Context, user, p string, o sandpit.WatchOptions) (sandpit.Watcher, error) {
	return f.files.Watch(ctx, user, f.absolutePath(p), o)
}
