package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
)

// Sandbox is a sandbox of the server, with its state at the time of the request. All methods may
// be called concurrently.
type Sandbox struct {
	sandpit.Sandbox

	client      *Client
	guest       *remoteGuest
	interpreter *interpreter.Remote
}

// Open returns a sandbox by its ID without a request: it is not checked that the sandbox exists.
func (g Sandboxes) Open(id sandpit.ID) *Sandbox { return g.client.newSandbox(sandpit.Sandbox{ID: id}) }

// newSandbox returns a sandbox whose guest is reached through the server.
func (c *Client) newSandbox(s sandpit.Sandbox) *Sandbox {
	guest := &remoteGuest{Client: envd.New(guestTransport{c, s.ID}, ""), client: c, id: s.ID}
	return &Sandbox{
		Sandbox: s, client: c, guest: guest,
		interpreter: interpreter.NewRemote(guest, interpreter.RemoteOptions{User: s.Spec.User}),
	}
}

// Guest returns the guest of the sandbox, reached through the server.
func (s *Sandbox) Guest() sandpit.Guest { return s.guest }

// Delete removes the sandbox and its data. It is idempotent.
func (s *Sandbox) Delete(ctx context.Context) error {
	err := s.client.Sandboxes.Delete(ctx, s.ID)
	if code := sandpit.CodeOf(err); code == sandpit.NotFound || code == sandpit.Gone {
		return nil
	}
	return err
}

// RunOptions say how a command runs. The zero value of a field means its default.
type RunOptions struct {
	Env map[string]string
	// Dir is the directory where it starts. Default: the sandbox's working directory.
	Dir string
	// User is the user inside the sandbox that runs it. Default: the sandbox's.
	User string
	// Stdin is the whole input. Default: empty.
	Stdin string
	// Timeout is the time after which the command is killed; below zero means never. Default: the
	// server's.
	Timeout time.Duration
	// MaxOutput bounds the returned bytes of each stream. Default: 1 MiB.
	MaxOutput int64
}

// Run runs a command line in a shell inside the sandbox and returns when it has ended. A command
// that fails or times out is no error: see the result.
func (s *Sandbox) Run(ctx context.Context, command string) (api.RunResult, error) {
	return s.RunWith(ctx, RunOptions{}, "sh", "-c", command)
}

// RunWith runs a program with its arguments, without a shell.
func (s *Sandbox) RunWith(ctx context.Context, o RunOptions, args ...string) (api.RunResult, error) {
	var res wire.RunResult
	err := s.client.doCall(ctx, call{
		method: http.MethodPost, path: apiPath("sandboxes", string(s.ID), "run"), out: &res, untimed: true,
		in: wire.Run{
			Args: args, Env: o.Env, Dir: o.Dir, User: o.User, Stdin: o.Stdin,
			Timeout: o.Timeout.Seconds(), MaxOutput: o.MaxOutput,
		},
	})
	return res, err
}

// Stats measures the sandbox.
func (s *Sandbox) Stats(ctx context.Context) (sandpit.Stats, error) {
	return s.client.Sandboxes.Stats(ctx, s.ID)
}

// deletionTimeout bounds the deletion by WithSandbox.
const deletionTimeout = 30 * time.Second

// WithSandbox creates a sandbox, calls fn with it and deletes it, however fn ends. The error is
// that of fn, joined with one of the deletion.
func (c *Client) WithSandbox(ctx context.Context, r CreateRequest, fn func(ctx context.Context, s *Sandbox) error) (err error) {
	s, err := c.Sandboxes.Create(ctx, r)
	if err != nil {
		return fmt.Errorf("create sandbox: %w", err)
	}
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), deletionTimeout)
		defer cancel()
		if e := s.Delete(cleanup); e != nil {
			err = errors.Join(err, fmt.Errorf("delete sandbox %s: %w", s.ID, e))
		}
	}()
	return fn(ctx, s)
}
