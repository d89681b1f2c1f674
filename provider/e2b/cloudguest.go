package e2b

import (
	"context"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"strconv"
	"sync/atomic"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
)

// extensionHeader is a header of responses of sandpit's guest to /health.
const extensionHeader = "Sandpit-Confine"

// cloudGuest is the guest that the cloud runs in a sandbox. Where that is E2B's, directories are read and written with
// tar, and sandpit's additions to the protocol do not exist: command log, confinement, secrets. The default user and
// working directory of the sandbox are set in each call.
type cloudGuest struct {
	b      *sandbox
	client *envd.Client
	// extended says that it is sandpit's guest: the cloud is a server of sandpit.
	extended atomic.Bool
}

var _ sandpit.GuestServer = (*cloudGuest)(nil)

func newCloudGuest(b *sandbox) *cloudGuest {
	return &cloudGuest{b: b, client: envd.New(b.monitor.Guest(tokenTransport{b, b.link.port(guestPort)}), "")}
}

// tokenTransport sets the token of the cloud's guest, which changes when the access is renewed.
type tokenTransport struct {
	b    *sandbox
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (t tokenTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := t.b.checkUsable(r.Context()); err != nil {
		if r.Body != nil {
			_ = r.Body.Close() // it was never read
		}
		return nil, err
	}
	if a := t.b.link.access.Load(); a != nil {
		t.b.guest.cloud.client.UseToken(a.GuestToken)
	}
	return t.next.RoundTrip(r)
}

// Unwrap returns the client with sandpit's additions, if the guest has them.
func (g *cloudGuest) Unwrap() any {
	if g.extended.Load() {
		return g.client
	}
	return nil
}

// prepare checks which guest it is, and prepares the user and the working directory of a new sandbox.
func (g *cloudGuest) prepare(ctx context.Context, isNew bool) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest/health", http.NoBody)
	if err != nil {
		return err
	}
	res, err := g.b.link.rawPort(guestPort).RoundTrip(r)
	if err != nil {
		return fmt.Errorf("ask the guest: %w", err)
	}
	g.extended.Store(res.Header.Get(extensionHeader) != "")
	_ = res.Body.Close() // has nothing
	if !isNew {
		return nil
	}
	user, dir := g.user(""), workDirOf(g.b.spec)
	if dir == sandpit.HomeDir {
		dir = ""
	}
	process, err := g.b.rawCloud().Start(ctx, sandpit.Command{Args: []string{"id", "-u"}, User: user, Dir: "/"})
	if err == nil {
		_, err = process.Wait(ctx)
	}
	if err != nil {
		if code := sandpit.CodeOf(err); code == sandpit.Unauthenticated || code == sandpit.Invalid {
			return sandpit.Errorf(sandpit.Invalid, "user %q: %w", user, err)
		}
		return err
	}
	if dir == "" {
		return nil
	}
	result, err := runScript(ctx, g.b.rawCloud(), `test -d "$1" || { mkdir -p "$1" && chown "$2" "$1"; }`, dir, user)
	if err == nil && result.Code != 0 {
		err = sandpit.Errorf(sandpit.Invalid, "working directory %q: %.200q", dir, result.Stderr)
	}
	return err
}

// user returns the user of a call: the sandbox's default user if the call names none.
func (g *cloudGuest) user(user string) string {
	switch {
	case user != "":
		return user
	case g.b.spec.User != "":
		return g.b.spec.User
	}
	return rootUser
}

// Start implements sandpit.Processes.
func (g *cloudGuest) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	cmd.User = g.user(cmd.User)
	if cmd.Dir == "" && workDirOf(g.b.spec) != sandpit.HomeDir {
		cmd.Dir = workDirOf(g.b.spec)
	}
	if cmd.ID != "" && !g.extended.Load() {
		return nil, sandpit.Errorf(sandpit.Unsupported, "start a command with an ID: E2B's guest has no command log")
	}
	return g.client.Start(ctx, cmd)
}

// Connect implements sandpit.Processes.
func (g *cloudGuest) Connect(ctx context.Context, pid int, s sandpit.Streams) (sandpit.Process, error) {
	return g.client.Connect(ctx, pid, s)
}

// ListProcesses implements sandpit.Processes.
func (g *cloudGuest) ListProcesses(ctx context.Context) ([]sandpit.ProcessInfo, error) {
	return g.client.ListProcesses(ctx)
}

// asUserError converts the error of a file call for an unknown user to Invalid. E2B's guest reports it with the code of a
// wrong key, so a call that needs the key and no user tells them apart.
func (g *cloudGuest) asUserError(ctx context.Context, err error) error {
	if sandpit.CodeOf(err) != sandpit.Unauthenticated || g.extended.Load() {
		return err
	}
	if _, envErr := g.client.Env(ctx); envErr != nil {
		return err
	}
	return sandpit.Errorf(sandpit.Invalid, "%w", err)
}

// ReadFile implements sandpit.Files.
func (g *cloudGuest) ReadFile(ctx context.Context, user, p string) (io.ReadCloser, error) {
	r, err := g.client.ReadFile(ctx, g.user(user), p)
	return r, g.asUserError(ctx, err)
}

// ReadRange implements sandpit.Files.
func (g *cloudGuest) ReadRange(ctx context.Context, user, p string, offset, length int64) (io.ReadCloser, error) {
	r, err := g.client.ReadRange(ctx, g.user(user), p, offset, length)
	return r, g.asUserError(ctx, err)
}

// WriteFile implements sandpit.Files. E2B's guest cannot set permissions: they are changed after the content was written.
func (g *cloudGuest) WriteFile(ctx context.Context, user, p string, content io.Reader, o sandpit.WriteOptions) error {
	user = g.user(user)
	if err := g.client.WriteFile(ctx, user, p, content, o); err != nil || o.Mode == 0 || g.extended.Load() {
		return g.asUserError(ctx, err)
	}
	f, err := g.client.Stat(ctx, user, p)
	if err != nil {
		return err
	}
	return g.run(ctx, user, "set the permissions of "+p, "chmod", octal(o.Mode), f.Path)
}

func octal(mode fs.FileMode) string { return strconv.FormatUint(uint64(mode.Perm()), 8) }

// run runs a program that must succeed.
func (g *cloudGuest) run(ctx context.Context, user, doing string, args ...string) error {
	var stderr limitedBuffer
	process, err := g.b.rawCloud().Start(ctx, sandpit.Command{Args: args, User: user, Dir: "/", Stderr: &stderr})
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	status, err := process.Wait(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	if status.Code != 0 {
		return sandpit.Errorf(sandpit.Internal, "%s: exit status %d: %.200q", doing, status.Code, stderr.Bytes())
	}
	return nil
}

// Stat implements sandpit.Files.
func (g *cloudGuest) Stat(ctx context.Context, user, p string) (sandpit.File, error) {
	f, err := g.client.Stat(ctx, g.user(user), p)
	return f, g.asUserError(ctx, err)
}

// ListDir implements sandpit.Files.
func (g *cloudGuest) ListDir(ctx context.Context, user, p string, depth int) ([]sandpit.File, error) {
	list, err := g.client.ListDir(ctx, g.user(user), p, depth)
	return list, g.asUserError(ctx, err)
}

// MakeDir implements sandpit.Files.
func (g *cloudGuest) MakeDir(ctx context.Context, user, p string) error {
	return g.asUserError(ctx, g.client.MakeDir(ctx, g.user(user), p))
}

// Move implements sandpit.Files.
func (g *cloudGuest) Move(ctx context.Context, user, from, to string) error {
	return g.asUserError(ctx, g.client.Move(ctx, g.user(user), from, to))
}

// Remove implements sandpit.Files.
func (g *cloudGuest) Remove(ctx context.Context, user, p string) error {
	return g.asUserError(ctx, g.client.Remove(ctx, g.user(user), p))
}

// Watch implements sandpit.Files.
func (g *cloudGuest) Watch(ctx context.Context, user, p string, o sandpit.WatchOptions) (sandpit.Watcher, error) {
	w, err := g.client.Watch(ctx, g.user(user), p, o)
	return w, g.asUserError(ctx, err)
}

// HTTP implements sandpit.GuestServer.
func (g *cloudGuest) HTTP() http.RoundTripper { return bridge{g} }

// checkUnconfined refuses a call that E2B's guest cannot confine to directories.
func (g *cloudGuest) checkUnconfined(ctx context.Context, doing string) error {
	if confine := g.client.Observer().Confine; confine != nil && len(confine(ctx)) > 0 {
		return sandpit.Errorf(sandpit.Unsupported, "%s: E2B's guest cannot confine file calls to directories", doing)
	}
	return nil
}

// report reports a call on a directory to the observer.
func (g *cloudGuest) report(ctx context.Context, action sandpit.GuestAction, p string, bytes int64, err error) {
	g.client.Observer().Called(ctx, sandpit.GuestCall{Action: action, Path: p, Bytes: bytes, Err: err})
}
