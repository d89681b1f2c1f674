package api_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// TestAttach ends what a key has begun when the key is deleted or expires, and nothing else.
func TestAttach(t *testing.T) {
	t.Parallel()
	now := &dialClock{now: time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)}
	keys := api.NewKeys(openStore(t), now, nil)
	attach := func(ttl time.Duration) (string, context.Context) {
		t.Helper()
		made, _, err := keys.Create(t.Context(), api.NewKey{Owner: "ann", TTL: ttl})
		if err != nil {
			t.Fatal(err)
		}
		ctx, release, err := keys.Attach(t.Context(), made.ID)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(release)
		return made.ID, ctx
	}
	deleted, first := attach(0)
	renamed, second := attach(time.Hour)
	expiring, third := attach(100 * time.Millisecond)
	if err := keys.Delete(t.Context(), deleted); err != nil {
		t.Fatal(err)
	}
	if err := keys.Rename(t.Context(), renamed, "other"); err != nil {
		t.Fatal(err)
	}
	now.forward(100 * time.Millisecond)
	for name, ctx := range map[string]context.Context{"deleted": first, "expired": third} {
		select {
		case <-ctx.Done():
			if cause := context.Cause(ctx); sandpit.CodeOf(cause) != sandpit.Unauthenticated {
				t.Errorf("%s: %v", name, cause)
			}
		case <-time.After(10 * time.Second):
			t.Errorf("what a key has begun continues when the key is %s", name)
		}
	}
	if second.Err() != nil {
		t.Errorf("another key's: %v", context.Cause(second))
	}
	for _, id := range []string{deleted, expiring, "none"} {
		if _, _, err := keys.Attach(t.Context(), id); !errors.Is(err, sandpit.Unauthenticated) {
			t.Errorf("attach to %s: %v", id, err)
		}
	}
	none, release, err := keys.Attach(t.Context(), "")
	if err != nil || none.Err() != nil {
		t.Errorf("without a key: %v, %v", err, none.Err())
	}
	release()
}

// TestAttachMeanwhile deletes keys while connections attach to them: each one gets the end.
func TestAttachMeanwhile(t *testing.T) {
	t.Parallel()
	keys := api.NewKeys(openStore(t), clock.System{}, nil)
	for range 50 {
		made, _, err := keys.Create(t.Context(), api.NewKey{Owner: "ann"})
		if err != nil {
			t.Fatal(err)
		}
		var users sync.WaitGroup
		for range 4 {
			users.Go(func() {
				for {
					ctx, release, err := keys.Attach(t.Context(), made.ID)
					if err != nil {
						return
					}
					time.Sleep(time.Millisecond)
					if _, _, err := keys.Attach(t.Context(), made.ID); err != nil { // it has ended before
						select {
						case <-ctx.Done():
						case <-time.After(10 * time.Second):
							t.Error("a request continues whose key was deleted")
						}
					}
					release()
				}
			})
		}
		time.Sleep(time.Millisecond)
		if err := keys.Delete(t.Context(), made.ID); err != nil {
			t.Fatal(err)
		}
		users.Wait()
	}
}

// TestRequestEndsWithKey has the context of a request end with its key.
func TestRequestEndsWithKey(t *testing.T) {
	t.Parallel()
	begun, ended := make(chan struct{}), make(chan error, 1)
	keys := api.NewKeys(openStore(t), clock.System{}, nil)
	made, secret, err := keys.Create(t.Context(), api.NewKey{Owner: "ann"})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /wait", func(_ http.ResponseWriter, r *http.Request) {
		close(begun)
		select {
		case <-r.Context().Done():
		case <-time.After(10 * time.Second):
		}
		ended <- context.Cause(r.Context())
	})
	s := serve(t, api.ServerOptions{Handler: api.NewEdge(api.EdgeOptions{Keys: keys}).Handler(mux)})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+s.Addr().String()+"/wait", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-Api-Key", secret)
	go func() {
		<-begun
		if err := keys.Delete(context.WithoutCancel(t.Context()), made.ID); err != nil {
			t.Error(err)
		}
	}()
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	_ = res.Body.Close()
	if err := <-ended; sandpit.CodeOf(err) != sandpit.Unauthenticated {
		t.Errorf("the request has ended with %v", err)
	}
}
