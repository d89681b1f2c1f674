package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"sync/atomic"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestWithSandbox uses a sandbox for a piece of work. However that ends, by a panic and
// by the end of the caller's context too, the sandbox is deleted once.
func TestWithSandbox(t *testing.T) {
	t.Parallel()
	failed := errors.New("it does not work")
	for name, tc := range map[string]struct {
		work     func(cancel context.CancelFunc) error
		refuse   bool // the server does not delete
		want     []error
		panicked bool
	}{
		"done":                  {work: func(context.CancelFunc) error { return nil }},
		"failed":                {work: func(context.CancelFunc) error { return failed }, want: []error{failed}},
		"given up":              {work: func(cancel context.CancelFunc) error { cancel(); return context.Canceled }, want: []error{context.Canceled}},
		"a panic":               {work: func(context.CancelFunc) error { panic("work") }, panicked: true},
		"failed, not deleted":   {work: func(context.CancelFunc) error { return failed }, refuse: true, want: []error{failed, sandpit.Conflict}},
		"done, but not deleted": {work: func(context.CancelFunc) error { return nil }, refuse: true, want: []error{sandpit.Conflict}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := sandpit.NewID()
			var created, deleted atomic.Int64
			c := against(t, func(w http.ResponseWriter, r *http.Request) {
				switch {
				case r.Method == http.MethodPost && r.URL.Path == "/v1/sandboxes":
					created.Add(1)
					w.Header().Set("Content-Type", "application/json")
					w.WriteHeader(http.StatusCreated)
					_ = json.NewEncoder(w).Encode(sandpit.Sandbox{ID: id, State: sandpit.StateRunning})
				case r.Method == http.MethodDelete && r.URL.Path == "/v1/sandboxes/"+string(id):
					deleted.Add(1)
					if tc.refuse {
						problem(w, http.StatusConflict, wire.Problem{Status: 409, Detail: "it is busy", Code: sandpit.Conflict})
						return
					}
					w.WriteHeader(http.StatusNoContent)
				default:
					t.Errorf("asked for %s %s", r.Method, r.URL)
				}
			})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			panicked, err := recovered(func() error {
				return c.WithSandbox(ctx, client.CreateRequest{}, func(_ context.Context, s *client.Sandbox) error {
					if s.ID != id || deleted.Load() != 0 {
						t.Errorf("sandbox %s, deleted %d times", s.ID, deleted.Load())
					}
					return tc.work(cancel)
				})
			})
			if panicked != tc.panicked || created.Load() != 1 || deleted.Load() != 1 {
				t.Errorf("panic %t, created %d times, deleted %d times", panicked, created.Load(), deleted.Load())
			}
			if (err != nil) != (len(tc.want) > 0) {
				t.Errorf("error %v, want %v", err, tc.want)
			}
			for _, want := range tc.want {
				if !errors.Is(err, want) {
					t.Errorf("error %v, want %v in it", err, want)
				}
			}
		})
	}
}

func recovered(do func() error) (panicked bool, err error) {
	defer func() { panicked = recover() != nil }()
	return false, do()
}

// TestWithSandboxNotMade does no work without a sandbox.
func TestWithSandboxNotMade(t *testing.T) {
	t.Parallel()
	c := against(t, func(w http.ResponseWriter, _ *http.Request) {
		problem(w, http.StatusForbidden, wire.Problem{Status: 403, Detail: "no", Code: sandpit.PermissionDenied})
	})
	err := c.WithSandbox(t.Context(), client.CreateRequest{}, func(context.Context, *client.Sandbox) error {
		t.Error("there is a sandbox")
		return nil
	})
	wantError(t, err, sandpit.PermissionDenied, "create sandbox")
}
