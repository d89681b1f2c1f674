package client_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestBusy: what a server refuses before it does anything is sent again, also what must not
// be done twice, and with its body; a stream is not.
func TestBusy(t *testing.T) {
	t.Parallel()
	id := sandpit.NewID()
	for name, tc := range map[string]struct {
		call func(context.Context, *client.Client) error
		want int32
	}{
		"delete": {func(ctx context.Context, c *client.Client) error { return c.Sandboxes.Delete(ctx, id) }, 3},
		"run": {func(ctx context.Context, c *client.Client) error {
			_, err := c.Sandboxes.Open(id).Run(ctx, "true")
			return err
		}, 3},
		"command": {func(ctx context.Context, c *client.Client) error {
			_, err := c.Sandboxes.Open(id).Guest().Start(ctx, sandpit.Command{Args: []string{"true"}})
			return err
		}, 3},
		"upload": {func(ctx context.Context, c *client.Client) error {
			return c.Sandboxes.Open(id).Guest().WriteFile(ctx, "", "f", strings.NewReader("x"), sandpit.WriteOptions{})
		}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			var bodies [3]string
			c := against(t, func(w http.ResponseWriter, r *http.Request) {
				text, _ := io.ReadAll(r.Body)
				n := calls.Add(1)
				if n <= 3 {
					bodies[n-1] = string(text)
				}
				if n < 3 {
					w.Header().Set("Retry-After", "0")
					problem(w, http.StatusTooManyRequests, wire.Problem{Code: sandpit.Exhausted, Detail: "busy", Retryable: true})
					return
				}
				problem(w, http.StatusConflict, wire.Problem{Code: sandpit.Conflict, Detail: "it came through"})
			})
			err := tc.call(t.Context(), c)
			if n := calls.Load(); n != tc.want {
				t.Fatalf("%d requests, want %d", n, tc.want)
			}
			if tc.want == 1 {
				wantError(t, err, sandpit.Exhausted, "busy")
				return
			}
			wantError(t, err, sandpit.Conflict, "it came through")
			if bodies[0] != bodies[1] || bodies[1] != bodies[2] || (name != "delete") != (bodies[0] != "") {
				t.Errorf("the bodies are %q", bodies)
			}
		})
	}
}

// TestBusyEnds: there is an end of it, a server that says to wait for long is believed, and
// quotas are no reason to try again.
func TestBusyEnds(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		after string
		retry bool
		want  int32
	}{
		"for ever":    {"0", true, 10},
		"for long":    {"31", true, 1},
		"with a date": {time.Now().Add(time.Hour).UTC().Format(http.TimeFormat), true, 1},
		"quota":       {"0", false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var calls atomic.Int32
			c := against(t, func(w http.ResponseWriter, _ *http.Request) {
				calls.Add(1)
				w.Header().Set("Retry-After", tc.after)
				problem(w, http.StatusTooManyRequests, wire.Problem{
					Code: sandpit.Exhausted, Detail: "no", Retryable: tc.retry, RequestID: "r1", Sandbox: "s1", Provider: "gvisor", Operation: "delete",
				})
			})
			err := c.Sandboxes.Delete(t.Context(), sandpit.NewID())
			wantError(t, err, sandpit.Exhausted, "no")
			if n := calls.Load(); n != tc.want {
				t.Errorf("%d requests, want %d", n, tc.want)
			}
			want := sandpit.Subject{Provider: "gvisor", Sandbox: "s1", Operation: "delete"}
			if sandpit.SubjectOf(err) != want || sandpit.RequestIDOf(err) != "r1" || sandpit.Retryable(err) != tc.retry {
				t.Errorf("the error concerns %+v, request %q, retryable %v", sandpit.SubjectOf(err), sandpit.RequestIDOf(err), sandpit.Retryable(err))
			}
		})
	}
	var calls atomic.Int32
	c := against(t, func(w http.ResponseWriter, _ *http.Request) {
		calls.Add(1)
		w.Header().Set("Retry-After", "20")
		problem(w, http.StatusTooManyRequests, wire.Problem{Code: sandpit.Exhausted, Detail: "no", Retryable: true})
	})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	wantError(t, c.Sandboxes.Delete(ctx, sandpit.NewID()), sandpit.Timeout, "")
}

// TestRetryAfter: a server that is away says for how long.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	var last atomic.Int64
	c := against(t, func(w http.ResponseWriter, _ *http.Request) {
		if calls.Add(1) == 1 {
			last.Store(time.Now().UnixNano())
			w.Header().Set("Retry-After", "1")
			problem(w, http.StatusServiceUnavailable, wire.Problem{Code: sandpit.Unavailable, Detail: "not yet", Retryable: true})
			return
		}
		if waited := time.Duration(time.Now().UnixNano() - last.Load()); waited < time.Second {
			t.Errorf("the client came back after %v", waited)
		}
		_, _ = io.WriteString(w, "{}")
	})
	if _, err := c.Stats(t.Context()); err != nil || calls.Load() != 2 {
		t.Errorf("%v after %d requests", err, calls.Load())
	}
}
