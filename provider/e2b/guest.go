package e2b

import (
	"bytes"
	"context"
	"io"
	"maps"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
	"github.com/sandpit-dev/sandpit/internal/reach/ownguest"
)

const (
	// rootUser is the user with all rights, and the default user.
	rootUser = "root"
	// readyTime is how long E2B's guest may take to answer after the cloud has created or resumed the sandbox.
	readyTime = 30 * time.Second
	readyPoll = 200 * time.Millisecond
	// maxScript bounds the output of a script of this provider, in bytes.
	maxScript = 64 << 10
)

// switchGuest is the guest of a sandbox: sandpit's own or the cloud's. Which one is known when the sandbox runs; until then
// it is sandpit's unless the options say otherwise.
type switchGuest struct {
	sandpit.Guest // the methods go to current

	b     *sandbox
	own   *envd.Client // through the port of sandpit's guest
	cloud *cloudGuest

	mu     sync.Mutex
	useOwn bool
	dial   *ownguest.Dialer // nil without sandpit's guest
}

var _ sandpit.ObservedGuest = (*switchGuest)(nil)

func newSwitchGuest(b *sandbox) *switchGuest {
	g := &switchGuest{b: b, useOwn: b.p.o.Guest != GuestCloud}
	g.own = envd.New(b.monitor.Guest(b.link.port(b.p.guestPort())), "")
	g.cloud = newCloudGuest(b)
	g.Guest = delegate{g}
	return g
}

// guestPort returns the port of sandpit's guest.
func (p *Provider) guestPort() int {
	if p.o.GuestPort != 0 {
		return p.o.GuestPort
	}
	return ownguest.DefaultPort
}

// current returns the guest that serves.
func (g *switchGuest) current() sandpit.Guest {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.useOwn {
		return g.own
	}
	return g.cloud
}

// Unwrap returns the guest that serves, for its abilities.
func (g *switchGuest) Unwrap() any { return g.current() }

// port returns the port of the guest that serves.
func (g *switchGuest) port() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.useOwn {
		return g.b.p.guestPort()
	}
	return guestPort
}

// dialer returns the way to other ports through sandpit's guest, if the sandbox has that.
func (g *switchGuest) dialer() (ownguest.Dialer, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.dial == nil {
		return ownguest.Dialer{}, false
	}
	return *g.dial, true
}

// use sets the guest that serves: sandpit's own, or the cloud's for nil.
func (g *switchGuest) use(own *ownguest.Guest) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.useOwn, g.dial = own != nil, nil
	if own != nil {
		g.own.UseToken(own.Key)
		g.dial = &own.Dialer
	}
}

// Observe implements sandpit.ObservedGuest.
func (g *switchGuest) Observe(o sandpit.GuestObserver) {
	g.own.Observe(o)
	g.cloud.client.Observe(o)
}

// Observer implements sandpit.ObservedGuest.
func (g *switchGuest) Observer() sandpit.GuestObserver { return g.own.Observer() }

// guestSetup has what a guest is opened with.
type guestSetup struct {
	env      map[string]string
	hostname string
	isNew    bool
}

const (
	// openAttempts is how often the provider tries to open a guest whose connections break: each step can be repeated.
	openAttempts = 3
	openPause    = 500 * time.Millisecond
)

// openGuest opens the guest of a sandbox that runs: it brings in sandpit's if that is possible.
func (b *sandbox) openGuest(ctx context.Context, s guestSetup) error {
	for attempt := 1; ; attempt++ {
		err := b.tryOpenGuest(ctx, s)
		if sandpit.CodeOf(err) != sandpit.Unavailable || attempt == openAttempts {
			return err
		}
		select {
		case <-time.After(openPause):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// tryOpenGuest opens the guest once.
func (b *sandbox) tryOpenGuest(ctx context.Context, s guestSetup) error {
	env, err := b.awaitCloudGuest(ctx)
	if err != nil {
		return err
	}
	maps.Copy(env, s.env)
	if s.hostname != "" {
		if err := b.setHostname(ctx, s.hostname); err != nil {
			return err
		}
	}
	if b.p.o.Guest != GuestCloud {
		own, err := ownguest.Start(ctx, ownguest.Computer{
			WriteFile: b.writeFile, Run: b.runScript, HTTP: b.link.rawPort(b.p.guestPort()), Port: b.p.guestPort(),
		}, ownguest.Settings{Env: env, User: b.spec.User, WorkDir: workDirOf(b.spec)})
		if err == nil {
			b.guest.use(own)
			return nil
		}
		if b.p.o.Guest == GuestOwn || sandpit.CodeOf(err) != sandpit.Unsupported {
			return err
		}
		b.p.o.Notice("provider e2b: sandbox " + string(b.h.ID) + " has E2B's guest only: " + err.Error())
	}
	b.guest.use(nil)
	return b.guest.cloud.prepare(ctx, s.isNew)
}

// workDirOf returns the working directory of commands.
func workDirOf(spec sandpit.Spec) string {
	if spec.WorkDir == "" {
		return sandpit.DefaultWorkDir
	}
	return spec.WorkDir
}

// rawCloud returns a client of the cloud's guest that does not check the sandbox's state.
func (b *sandbox) rawCloud() *envd.Client {
	token := ""
	if a := b.link.access.Load(); a != nil {
		token = a.GuestToken
	}
	return envd.New(b.link.rawPort(guestPort), token)
}

// awaitCloudGuest returns the environment of programs when the cloud's guest answers.
func (b *sandbox) awaitCloudGuest(ctx context.Context) (map[string]string, error) {
	limited, cancel := context.WithTimeout(ctx, readyTime)
	defer cancel()
	for {
		env, err := b.rawCloud().Env(limited)
		if err == nil {
			if env == nil {
				env = make(map[string]string)
			}
			return env, nil
		}
		if sandpit.CodeOf(err) != sandpit.Unavailable {
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, err
		}
		select {
		case <-time.After(readyPoll):
		case <-limited.Done():
			if ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			return nil, sandpit.Errorf(sandpit.Unavailable, "the guest does not answer within %v: %w", readyTime, err)
		}
	}
}

// writeFile writes a file as root.
func (b *sandbox) writeFile(ctx context.Context, path string, content io.Reader, _ int64) error {
	return b.rawCloud().WriteFile(ctx, rootUser, path, content, sandpit.WriteOptions{})
}

// runScript runs a script as root, in the root directory.
func (b *sandbox) runScript(ctx context.Context, script string) (ownguest.Result, error) {
	return runScript(ctx, b.rawCloud(), script)
}

func runScript(ctx context.Context, client *envd.Client, script string, args ...string) (ownguest.Result, error) {
	var stdout, stderr limitedBuffer
	process, err := client.Start(ctx, sandpit.Command{
		Args: append([]string{"sh", "-c", script, "sh"}, args...), User: rootUser, Dir: "/", Stdout: &stdout, Stderr: &stderr,
	})
	if err != nil {
		return ownguest.Result{}, err
	}
	status, err := process.Wait(ctx)
	if err != nil {
		return ownguest.Result{}, err
	}
	return ownguest.Result{Stdout: stdout.Bytes(), Stderr: stderr.Bytes(), Code: status.Code}, nil
}

// limitedBuffer keeps the first bytes that are written to it.
type limitedBuffer struct{ bytes.Buffer }

// Write implements io.Writer.
func (w *limitedBuffer) Write(p []byte) (int, error) {
	w.Buffer.Write(p[:min(len(p), max(0, maxScript-w.Len()))])
	return len(p), nil
}

// setHostname sets the host name. Unsupported: root of the sandbox may not.
func (b *sandbox) setHostname(ctx context.Context, name string) error {
	r, err := runScript(ctx, b.rawCloud(), `hostname "$1" 2>/dev/null || printf %s "$1" >/proc/sys/kernel/hostname; [ "$(cat /proc/sys/kernel/hostname)" = "$1" ]`, name)
	if err != nil {
		return err
	}
	if r.Code != 0 {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "host name %q: it cannot be set in this sandbox: %.200q", name, strings.TrimSpace(string(r.Stderr))),
			"omit the host name")
	}
	return nil
}

// delegate implements sandpit.Guest with the guest that serves.
type delegate struct{ g *switchGuest }

// Start implements sandpit.Processes.
func (d delegate) Start(ctx context.Context, cmd sandpit.Command) (sandpit.Process, error) {
	return d.g.current().Start(ctx, cmd)
}

// Connect implements sandpit.Processes.
func (d delegate) Connect(ctx context.Context, pid int, s sandpit.Streams) (sandpit.Process, error) {
	return d.g.current().Connect(ctx, pid, s)
}

// ListProcesses implements sandpit.Processes.
func (d delegate) ListProcesses(ctx context.Context) ([]sandpit.ProcessInfo, error) {
	return d.g.current().ListProcesses(ctx)
}

// ReadFile implements sandpit.Files.
func (d delegate) ReadFile(ctx context.Context, user, path string) (io.ReadCloser, error) {
	return d.g.current().ReadFile(ctx, user, path)
}

// ReadRange implements sandpit.Files.
func (d delegate) ReadRange(ctx context.Context, user, path string, offset, length int64) (io.ReadCloser, error) {
	return d.g.current().ReadRange(ctx, user, path, offset, length)
}

// WriteFile implements sandpit.Files.
func (d delegate) WriteFile(ctx context.Context, user, path string, content io.Reader, o sandpit.WriteOptions) error {
	return d.g.current().WriteFile(ctx, user, path, content, o)
}

// Stat implements sandpit.Files.
func (d delegate) Stat(ctx context.Context, user, path string) (sandpit.File, error) {
	return d.g.current().Stat(ctx, user, path)
}

// ListDir implements sandpit.Files.
func (d delegate) ListDir(ctx context.Context, user, path string, depth int) ([]sandpit.File, error) {
	return d.g.current().ListDir(ctx, user, path, depth)
}

// MakeDir implements sandpit.Files.
func (d delegate) MakeDir(ctx context.Context, user, path string) error {
	return d.g.current().MakeDir(ctx, user, path)
}

// Move implements sandpit.Files.
func (d delegate) Move(ctx context.Context, user, from, to string) error {
	return d.g.current().Move(ctx, user, from, to)
}

// Remove implements sandpit.Files.
func (d delegate) Remove(ctx context.Context, user, path string) error {
	return d.g.current().Remove(ctx, user, path)
}

// ReadTree implements sandpit.Files.
func (d delegate) ReadTree(ctx context.Context, user, path string) (io.ReadCloser, error) {
	return d.g.current().ReadTree(ctx, user, path)
}

// WriteTree implements sandpit.Files.
func (d delegate) WriteTree(ctx context.Context, user, path string, tar io.Reader) error {
	return d.g.current().WriteTree(ctx, user, path, tar)
}

// Watch implements sandpit.Files.
func (d delegate) Watch(ctx context.Context, user, path string, o sandpit.WatchOptions) (sandpit.Watcher, error) {
	return d.g.current().Watch(ctx, user, path, o)
}
