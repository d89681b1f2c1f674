package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// served is a sandpit server in its own process, used over HTTP on loopback.
type served struct {
	process *exec.Cmd
	words   *lockedBuffer
	client  *client.Client
	spec    sandpit.Spec
}

// openServed starts a server with a pool and waits until it can create sandboxes.
func (k *kit) openServed(ctx context.Context) (*served, error) {
	s, _, _, err := k.openServer(ctx, "server", fmt.Sprintf("[[pool]]\nimage = %q\nsize = %d\n", k.root.path, poolSize))
	return s, err
}

// openServer starts a server with settings, and returns it with its URL and a key. It waits for the
// pool in the settings.
func (k *kit) openServer(ctx context.Context, name, settings string) (s *served, url, key string, err error) {
	dir := filepath.Join(k.dir, name)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, "", "", err
	}
	address, err := freeAddress(ctx)
	if err != nil {
		return nil, "", "", err
	}
	url = "http://" + address
	socket := filepath.Join(dir, "sock")
	config := filepath.Join(dir, "config.toml")
	text := fmt.Sprintf("[server]\nlisten = %q\nsocket = %q\nrate = 1000000\nburst = 1000000\n%s", address, socket, settings)
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		return nil, "", "", err
	}
	s = &served{spec: sandpit.Spec{Image: sandpit.Image(k.root.path)}, words: &lockedBuffer{}}
	s.process = exec.CommandContext(ctx, k.engine, "serve", "--config", config)
	s.process.Cancel = func() error { return s.process.Process.Signal(unix.SIGTERM) }
	s.process.WaitDelay = cleanTimeout
	s.process.Stderr = s.words
	s.process.Env = append(s.process.Environ(),
		"SANDPIT_STATE_DIR="+filepath.Join(dir, "state"),
		"SANDPIT_CACHE_DIR="+filepath.Join(dir, "cache"),
		"SANDPIT_RUNTIME_DIR="+filepath.Join(dir, "run"),
	)
	if err := s.process.Start(); err != nil {
		return nil, "", "", err
	}
	if s.client, key, err = connect(ctx, socket, url); err == nil && strings.Contains(settings, "[[pool]]") {
		err = s.full(ctx)
	}
	if err != nil {
		return nil, "", "", errors.Join(err, s.close(ctx), errors.New(lastWords(s.words.String())))
	}
	return s, url, key, nil
}

// connect creates a key through the server's socket and returns it with a client that uses it.
func connect(ctx context.Context, socket, url string) (*client.Client, string, error) {
	admin, err := client.New(client.Options{URL: "unix://" + socket})
	if err != nil {
		return nil, "", err
	}
	defer admin.Close()
	for limit := time.Now().Add(time.Minute); ; {
		if err = admin.Ready(ctx); err == nil || time.Now().After(limit) {
			break
		}
		if err := pauseFor(ctx, 20*time.Millisecond); err != nil {
			return nil, "", err
		}
	}
	if err != nil {
		return nil, "", withHint(err)
	}
	key, err := admin.Keys.Create(ctx, "bench", "", 0, true)
	if err != nil {
		return nil, "", err
	}
	c, err := client.New(client.Options{URL: url, Key: key.Secret})
	return c, key.Secret, err
}

// full waits until the pool is full and no sandbox is being created.
func (s *served) full(ctx context.Context) error {
	for limit := time.Now().Add(2 * time.Minute); time.Now().Before(limit); {
		pools, err := s.client.Pools(ctx)
		if err != nil {
			return err
		}
		if len(pools) == 1 && pools[0].Ready == poolSize && pools[0].Making == 0 {
			return nil
		}
		if err := pauseFor(ctx, 2*time.Millisecond); err != nil {
			return err
		}
	}
	return errors.New("the server's pool does not fill up")
}

// close removes the sandboxes and ends the server.
func (s *served) close(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanTimeout)
	defer cancel()
	var errs []error
	if s.client != nil {
		list, err := s.client.Sandboxes.List(ctx, client.Filter{})
		errs = append(errs, err)
		for _, b := range list {
			errs = append(errs, s.client.Sandboxes.Delete(ctx, b.ID))
		}
		s.client.Close()
	}
	errs = append(errs, s.process.Process.Signal(unix.SIGTERM))
	if err := s.process.Wait(); err != nil {
		errs = append(errs, fmt.Errorf("the server: %w: %s", err, lastWords(s.words.String())))
	}
	return errors.Join(errs...)
}

func (s *served) contestant() contestant {
	return contestant{name: bySandpitHTTP, life: s.life, start: asBox(s.start)}
}

// life claims a sandbox from a full pool that creates no other meanwhile.
func (s *served) life(ctx context.Context) (life, error) {
	if err := s.full(ctx); err != nil {
		return life{}, err
	}
	began := time.Now()
	box, err := s.client.Sandboxes.Create(ctx, client.CreateRequest{Spec: s.spec})
	if err != nil {
		return life{}, withHint(err)
	}
	res, err := box.RunWith(ctx, client.RunOptions{}, "echo", word)
	first := time.Since(began)
	err = errors.Join(err, box.Delete(ctx))
	if err == nil && res.Stdout != word+"\n" {
		err = fmt.Errorf("echo printed %q", res.Stdout)
	}
	return life{first: first, whole: time.Since(began)}, err
}

func (s *served) start(ctx context.Context) (*servedBox, error) {
	box, err := s.client.Sandboxes.Create(ctx, client.CreateRequest{Spec: s.spec})
	if err != nil {
		return nil, withHint(err)
	}
	w, err := workspace.New(box.Guest(), workspace.Options{})
	if err != nil {
		return nil, errors.Join(err, box.Delete(ctx))
	}
	return &servedBox{box: box, w: w}, nil
}

type servedBox struct {
	box *client.Sandbox
	w   *workspace.Workspace
}

func (b *servedBox) Run(ctx context.Context, args ...string) error {
	r, err := b.box.RunWith(ctx, client.RunOptions{}, args...)
	if err == nil && r.ExitCode != 0 {
		err = fmt.Errorf("%s: exit status %d: %s", args[0], r.ExitCode, lastWords(r.Stdout+r.Stderr))
	}
	return err
}

func (b *servedBox) CopyIn(ctx context.Context, source, target string) error {
	return b.w.CopyTo(ctx, source, target)
}

func (b *servedBox) CopyOut(ctx context.Context, source, target string) error {
	_, err := b.w.CopyFrom(ctx, source, target)
	return err
}

func (b *servedBox) Destroy(ctx context.Context) error { return b.box.Delete(ctx) }

// freeAddress returns an unused address of loopback.
func freeAddress(ctx context.Context) (string, error) {
	ln, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return ln.Addr().String(), ln.Close()
}

func pauseFor(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// lockedBuffer is a buffer that is read while it is written to.
type lockedBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.TrimSpace(b.buf.String())
}
