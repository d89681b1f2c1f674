package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
)

// Sandbox is a sandbox of the server, with what was known about it when it was asked
// for. All methods may be called concurrently.
type Sandbox struct {
	sandpit.Sandbox

	client *Client
	guest  *remoteGuest
}

// Open returns a sandbox by its ID without asking the server whether it is there.
func (g Sandboxes) Open(id sandpit.ID) *Sandbox { return g.client.sandbox(sandpit.Sandbox{ID: id}) }

func (c *Client) sandbox(s sandpit.Sandbox) *Sandbox {
	return &Sandbox{Sandbox: s, client: c, guest: &remoteGuest{Client: envd.New(inside{c, s.ID}, ""), client: c, id: s.ID}}
}

// Guest is the program inside, reached through the server.
func (s *Sandbox) Guest() sandpit.Guest { return s.guest }

// Delete ends the sandbox and removes everything of it. It is idempotent.
func (s *Sandbox) Delete(ctx context.Context) error {
	err := s.client.Sandboxes.Delete(ctx, s.ID)
	if code := sandpit.CodeOf(err); code == sandpit.NotFound || code == sandpit.Gone {
		return nil
	}
	return err
}

// RunOptions say how a command is run. The zero value of a field means the default
// stated with it.
type RunOptions struct {
	Env map[string]string
	// Dir is where it starts. Default: the sandbox's working directory.
	Dir string
	// User runs it. Default: the sandbox's.
	User string
	// Stdin is its whole input. Default: empty.
	Stdin string
	// Timeout kills it; below zero is never. Default: the server's.
	Timeout time.Duration
	// MaxOutput is how many bytes of each stream are returned at most. Default: 1 MiB.
	MaxOutput int64
}

// Run runs text in a shell inside and returns when it has ended. A command that fails
// or takes too long is no error: the result tells.
func (s *Sandbox) Run(ctx context.Context, command string) (api.RunResult, error) {
	return s.RunWith(ctx, RunOptions{}, "sh", "-c", command)
}

// RunWith runs a program with its arguments, with no shell between.
func (s *Sandbox) RunWith(ctx context.Context, o RunOptions, args ...string) (api.RunResult, error) {
	var res wire.RunResult
	err := s.client.do(ctx, call{
		method: http.MethodPost, path: path("sandboxes", string(s.ID), "run"), out: &res, untimed: true,
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

// goodbye is how long WithSandbox takes to delete.
const goodbye = 30 * time.Second

// WithSandbox makes a sandbox, gives it to fn and deletes it, however fn ends. The
// error is that of fn, joined with one of the deletion.
func (c *Client) WithSandbox(ctx context.Context, r CreateRequest, fn func(ctx context.Context, s *Sandbox) error) (err error) {
	s, err := c.Sandboxes.Create(ctx, r)
	if err != nil {
		return fmt.Errorf("create a sandbox: %w", err)
	}
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), goodbye)
		defer cancel()
		if e := s.Delete(cleanup); e != nil {
			err = errors.Join(err, fmt.Errorf("delete sandbox %s: %w", s.ID, e))
		}
	}()
	return fn(ctx, s)
}

// inside reaches the guest of a sandbox through the server.
type inside struct {
	client *Client
	id     sandpit.ID
}

// RoundTrip implements http.RoundTripper. A failure of the server's own becomes an
// error, so that it is not taken for an answer of the guest.
func (i inside) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Del("X-Access-Token")
	if r.Context().Value(defaultTimeoutKey{}) != nil {
		r.Header.Set(wire.HeaderCommandTimeout, wire.DefaultCommandTimeout)
	}
	base := i.client.base
	at := path("sandboxes", string(i.id), "envd") + r.URL.EscapedPath()
	target, err := base.Parse(base.Scheme + "://" + base.Host + base.EscapedPath() + at)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "no address can be made of sandbox %.100q", string(i.id))
	}
	target.RawQuery = r.URL.RawQuery
	r.URL, r.Host = target, ""
	res, err := i.client.http.Transport.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if isProblem(res) {
		defer res.Body.Close()
		return nil, problemError(res)
	}
	if strings.HasPrefix(res.Header.Get("Content-Type"), "text/html") && res.StatusCode/100 != 2 {
		defer res.Body.Close()
		return nil, notSandpit(res, nil) // of a proxy in between
	}
	return res, nil
}
