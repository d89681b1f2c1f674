package client_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestRetries counts what arrives at a server that is not ready at first.
func TestRetries(t *testing.T) {
	t.Parallel()
	id := sandpit.NewID()
	for name, tc := range map[string]struct {
		call func(context.Context, *client.Client) error
		want int32
	}{
		"get": {func(ctx context.Context, c *client.Client) error { _, err := c.Sandboxes.Get(ctx, id); return err }, 3},
		"list": {func(ctx context.Context, c *client.Client) error {
			_, err := c.Sandboxes.List(ctx, client.Filter{})
			return err
		}, 3},
		"stats": {func(ctx context.Context, c *client.Client) error { _, err := c.Stats(ctx); return err }, 3},
		"name":  {func(ctx context.Context, c *client.Client) error { return c.Sandboxes.Rename(ctx, id, "x") }, 3},
		"resize": {func(ctx context.Context, c *client.Client) error {
			return c.Sandboxes.Resize(ctx, id, sandpit.Resources{CPUs: 2})
		}, 3},
		"labels": {func(ctx context.Context, c *client.Client) error { return c.Sandboxes.SetLabels(ctx, id, nil) }, 3},
		"timeout": {func(ctx context.Context, c *client.Client) error {
			return c.Sandboxes.SetTimeout(ctx, id, time.Hour, "")
		}, 3},
		"create": {func(ctx context.Context, c *client.Client) error {
			_, err := c.Sandboxes.Create(ctx, client.CreateRequest{})
			return err
		}, 3},
		"stop":   {func(ctx context.Context, c *client.Client) error { return c.Sandboxes.Stop(ctx, id) }, 1},
		"start":  {func(ctx context.Context, c *client.Client) error { return c.Sandboxes.Start(ctx, id) }, 1},
		"delete": {func(ctx context.Context, c *client.Client) error { return c.Sandboxes.Delete(ctx, id) }, 1},
		"run": {func(ctx context.Context, c *client.Client) error {
			_, err := c.Sandboxes.Open(id).Run(ctx, "true")
			return err
		}, 1},
		"new key": {func(ctx context.Context, c *client.Client) error {
			_, err := c.Keys.Create(ctx, "a", "", 0, false)
			return err
		}, 1},
		"drop":     {func(ctx context.Context, c *client.Client) error { return c.Queue.Drop(ctx, "1") }, 1},
		"is ready": {func(ctx context.Context, c *client.Client) error { return c.Ready(ctx) }, 1},
		"pull": {func(ctx context.Context, c *client.Client) error {
			_, err := c.Images.Pull(ctx, api.Pull{Name: "x"}, nil)
			return err
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			var mu sync.Mutex
			keys := map[string]bool{}
			c := against(t, func(w http.ResponseWriter, r *http.Request) {
				mu.Lock()
				keys[r.Header.Get(wire.HeaderIdempotencyKey)] = true
				mu.Unlock()
				if calls.Add(1) < 3 {
					problem(w, http.StatusServiceUnavailable, wire.Problem{Code: sandpit.Unavailable, Detail: "not yet"})
					return
				}
				_, _ = io.WriteString(w, "{}")
			})
			err := tc.call(t.Context(), c)
			if n := calls.Load(); n != tc.want {
				t.Errorf("%d requests, want %d", n, tc.want)
			}
			if tc.want == 1 {
				wantError(t, err, sandpit.Unavailable, "not yet")
			} else if err != nil {
				t.Error(err)
			}
			if name == "create" && (len(keys) != 1 || keys[""]) {
				t.Errorf("the keys of one request are %v", keys)
			}
		})
	}
}

// TestRetriesEnd: other failures are final, and so is the last attempt.
func TestRetriesEnd(t *testing.T) {
	t.Parallel()
	for _, code := range []sandpit.Code{
		sandpit.Invalid, sandpit.Unauthenticated, sandpit.PermissionDenied, sandpit.NotFound, sandpit.Conflict,
		sandpit.Exhausted, sandpit.Timeout, sandpit.Gone, sandpit.Internal, "made up",
	} {
		var calls atomic.Int32
		c := against(t, func(w http.ResponseWriter, _ *http.Request) {
			calls.Add(1)
			problem(w, http.StatusBadRequest, wire.Problem{Code: code, Detail: "no"})
		})
		_, err := c.Sandboxes.Get(t.Context(), sandpit.NewID())
		wantError(t, err, code, "no")
		if n := calls.Load(); n != 1 {
			t.Errorf("%s: %d requests, want 1", code, n)
		}
	}
	var calls atomic.Int32
	c := against(t, func(http.ResponseWriter, *http.Request) {
		calls.Add(1)
		panic(http.ErrAbortHandler)
	})
	_, err := c.Sandboxes.Get(t.Context(), sandpit.NewID())
	wantError(t, err, sandpit.Unavailable, "cannot be reached")
	if n := calls.Load(); n < 4 { // the transport itself may add some
		t.Errorf("%d requests, want 4", n)
	}
}

// TestCutConnections puts a proxy between that cuts responses in the middle.
func TestCutConnections(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		calls.Add(1)
		fmt.Fprintf(w, `{"id":%q,"spec":{"name":%q}}`, strings.TrimPrefix(r.URL.Path, "/v1/sandboxes/"), strings.Repeat("n", 5000))
	}))
	defer s.Close()
	var connections atomic.Int32
	proxy := cuttingProxy(t, s.Listener.Addr().String(), func() int64 {
		if connections.Add(1) <= 2 {
			return 1000
		}
		return 1 << 30
	})
	c := newClient(t, client.Options{URL: "http://" + proxy, Key: secret})
	id := sandpit.NewID()
	got, err := c.Sandboxes.Get(t.Context(), id)
	if err != nil || got.ID != id || connections.Load() < 3 {
		t.Errorf("%v and %v after %d connections, want %s after 3", got, err, connections.Load(), id)
	}

	connections.Store(0)
	c.Close()
	calls.Store(0)
	_, err = c.Sandboxes.Open(id).Run(t.Context(), "true")
	wantError(t, err, sandpit.Unavailable, "lost")
	if n := calls.Load(); n != 1 {
		t.Errorf("a command was sent %d times", n)
	}
}

// cuttingProxy passes connections on to address and cuts each after so many bytes of
// the answer.
func cuttingProxy(t *testing.T, address string, after func() int64) string {
	t.Helper()
	ln, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	group.Go(func() {
		for {
			in, err := ln.Accept()
			if err != nil {
				return
			}
			group.Go(func() {
				defer in.Close()
				out, err := new(net.Dialer).Dial("tcp", address)
				if err != nil {
					return
				}
				defer out.Close()
				group.Go(func() {
					_, _ = io.Copy(out, in)
					_ = out.Close()
				})
				_, _ = io.CopyN(in, out, after())
			})
		}
	})
	t.Cleanup(func() {
		_ = ln.Close()
		http.DefaultClient.CloseIdleConnections()
		group.Wait()
	})
	return ln.Addr().String()
}
