package sshd_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/crypto/ssh"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/sshkey"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/sshd"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testgvisor"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// TestMain ignores what hasSession can leave behind.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("golang.org/x/crypto/ssh.(*mux).openChannel"))
}

// long is how long a test waits for what must come.
const long = 2 * time.Minute

// rig is a server for SSH.
type rig struct {
	*manager.Manager

	t       *testing.T
	store   *store.Store
	keys    *sshkey.Keys
	tokens  *sshkey.Tokens
	apiKeys *api.Keys
	rights  *token.Tokens
	server  *sshd.Server
	stop    func() // ends the server, and waits for it
	dir     string
	apiKey  string // the ID of the one that asks for keys and tokens; "": none
}

// newRig serves sandboxes of a provider, which it closes at the end.
func newRig(t *testing.T, provider sandpit.Provider, edit func(*sshd.Options)) *rig {
	t.Helper()
	log := slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
	st, err := store.Open(t.Context(), t.TempDir(), store.Options{})
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, store: st, dir: t.TempDir(), apiKeys: api.NewKeys(st, clock.System{}, log)}
	if r.rights, err = token.Open(t.Context(), token.Options{Store: st, Keys: r.apiKeys, Dir: t.TempDir()}); err != nil {
		t.Fatal(err)
	}
	r.keys, r.tokens = sshkey.NewKeys(st, r.apiKeys, clock.System{}, log), sshkey.NewTokens(clock.System{}, r.rights)
	if r.Manager, err = manager.Open(t.Context(), testoptions.Manager(manager.Options{
		Store: st, Providers: map[string]sandpit.Provider{"test": provider}, Log: slog.New(slog.DiscardHandler), DestroyOnClose: true,
	})); err != nil {
		t.Fatal(err)
	}
	key, err := sshd.HostKey(filepath.Join(r.dir, "state"))
	if err != nil {
		t.Fatal(err)
	}
	o := sshd.Options{
		Manager: r.Manager, Keys: r.keys, Tokens: r.tokens, HostKey: key, Address: "127.0.0.1:0", Log: log, LoginTime: long,
		MaxConnections: 100, IdleTimeout: time.Hour,
	}
	if edit != nil {
		edit(&o)
	}
	if r.server, err = sshd.Listen(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	ctx, end := context.WithCancel(context.WithoutCancel(t.Context()))
	ended := make(chan error, 1)
	go func() { ended <- r.server.Serve(ctx) }()
	r.stop = sync.OnceFunc(func() {
		end()
		select {
		case err := <-ended:
			if err != nil {
				t.Errorf("serve: %v", err)
			}
		case <-time.After(long):
			t.Error("the server does not end")
		}
	})
	t.Cleanup(func() {
		r.stop()
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
		defer cancel()
		if err := errors.Join(r.Close(ctx), provider.Close(), st.Close()); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return r
}

// fakeRig has sandboxes without isolation.
func fakeRig(t *testing.T, edit func(*sshd.Options)) *rig {
	t.Helper()
	world := fake.NewWorld(t.TempDir())
	t.Cleanup(func() { _ = world.Close() })
	return newRig(t, world.NewProvider(), edit)
}

// realRig has real sandboxes.
func realRig(t *testing.T) *rig {
	t.Helper()
	return newRig(t, testgvisor.New(t), nil)
}

// box creates a sandbox of an owner.
func (r *rig) box(owner string) sandpit.ID {
	r.t.Helper()
	s, err := r.Create(r.t.Context(), manager.CreateRequest{Owner: owner})
	if err != nil {
		r.t.Fatal(err)
	}
	return s.ID
}

// key makes a key pair, registers it for owner if that is not "", and returns the file of
// the private half.
func (r *rig) key(owner string) string {
	r.t.Helper()
	file := filepath.Join(r.t.TempDir(), "key")
	out, err := exec.CommandContext(r.t.Context(), "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "of "+owner, "-f", file).CombinedOutput()
	if err != nil {
		r.t.Fatalf("ssh-keygen: %v\n%s", err, out)
	}
	if owner == "" {
		return file
	}
	text, err := os.ReadFile(file + ".pub")
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.keys.Add(r.t.Context(), owner, r.apiKey, "", string(text)); err != nil {
		r.t.Fatal(err)
	}
	return file
}

// signer reads a private key.
func (r *rig) signer(file string) ssh.Signer {
	r.t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		r.t.Fatal(err)
	}
	key, err := ssh.ParsePrivateKey(text)
	if err != nil {
		r.t.Fatal(err)
	}
	return key
}

// connect opens a connection, and says nothing.
func (r *rig) connect() net.Conn {
	r.t.Helper()
	c, err := new(net.Dialer).DialContext(r.t.Context(), "tcp", r.server.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	return c
}

// dial logs in with Go's client.
func (r *rig) dial(id sandpit.ID, auth ...ssh.AuthMethod) (*ssh.Client, error) {
	r.t.Helper()
	raw := r.connect()
	var banner bytes.Buffer
	conn, channels, requests, err := ssh.NewClientConn(raw, "sandpit", &ssh.ClientConfig{
		User: string(id), Auth: auth, HostKeyCallback: ssh.InsecureIgnoreHostKey(), // the tests of OpenSSH look at it
		BannerCallback: func(text string) error { banner.WriteString(text); return nil },
	})
	if err != nil {
		_ = raw.Close()
		return nil, errors.Join(err, errors.New(banner.String()))
	}
	return ssh.NewClient(conn, channels, requests), nil
}

// enter is dial that must succeed.
func (r *rig) enter(id sandpit.ID, auth ...ssh.AuthMethod) *ssh.Client {
	r.t.Helper()
	c, err := r.dial(id, auth...)
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = c.Close() })
	return c
}

// hasSession reports whether the server opens a session on a connection that it may be closing. Go's client can wait
// for ever for the answer then: a channel that it adds after it has ended those of a closed connection is never ended.
func hasSession(c *ssh.Client) bool {
	opened, closed := make(chan bool, 1), make(chan struct{})
	go func() {
		s, err := c.NewSession()
		if err == nil {
			_ = s.Close() // the connection may be closed already
		}
		opened <- err == nil
	}()
	go func() {
		defer close(closed)
		_ = c.Wait() // it tells how
	}()
	select {
	case ok := <-opened:
		return ok
	case <-closed:
		return false
	}
}

// token is a way in without a key.
func (r *rig) token(id sandpit.ID) ssh.AuthMethod {
	r.t.Helper()
	secret, _, err := r.tokens.Issue(id, sshkey.Holder{Owner: "ann", Key: r.apiKey}, 0)
	if err != nil {
		r.t.Fatal(err)
	}
	return ssh.Password(secret)
}

// client is one of OpenSSH's programs.
type client struct {
	r    *rig
	key  string
	dir  string
	opts []string
}

// openSSH returns the programs, with a key. It skips where they are missing.
func (r *rig) openSSH(key string) *client {
	r.t.Helper()
	for _, program := range []string{"ssh", "sftp", "scp", "ssh-keygen"} {
		if _, err := exec.LookPath(program); err != nil {
			testengine.Skip(r.t, "there is no %s on this machine", program)
		}
	}
	c := &client{r: r, key: key, dir: r.t.TempDir()}
	_, port, err := net.SplitHostPort(r.server.Addr().String())
	if err != nil {
		r.t.Fatal(err)
	}
	hosts := filepath.Join(c.dir, "known_hosts")
	if err := os.WriteFile(hosts, []byte("sandpit "+r.server.PublicHostKey()+"\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	for _, o := range []string{
		"Port=" + port, "IdentityFile=" + key, "IdentitiesOnly=yes", "UserKnownHostsFile=" + hosts, "GlobalKnownHostsFile=/dev/null",
		"HostKeyAlias=sandpit", "StrictHostKeyChecking=yes", "BatchMode=yes", "ControlPath=none",
	} {
		c.opts = append(c.opts, "-o", o)
	}
	return c
}

// result is how a program ended.
type result struct {
	stdout, stderr string
	code           int
}

// command prepares a program.
func (c *client) command(program string, args ...string) *exec.Cmd {
	ctx, cancel := context.WithTimeout(c.r.t.Context(), long)
	c.r.t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, program, append(append([]string{"-F", "none"}, c.opts...), args...)...)
	cmd.Dir = c.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + c.dir, "LANG=C.UTF-8", "TERM=xterm-256color", "LC_SECRET=1"}
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// run runs a program to its end.
func (c *client) run(stdin, program string, args ...string) result {
	c.r.t.Helper()
	cmd := c.command(program, args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &stdout, &stderr
	err := cmd.Run()
	if _, failed := errors.AsType[*exec.ExitError](err); err != nil && !failed {
		c.r.t.Fatalf("%s: %v", program, err)
	}
	return result{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

func at(id sandpit.ID) string { return string(id) + "@127.0.0.1" }
