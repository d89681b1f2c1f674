package daytona_test

import (
	"context"
	"errors"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/faultproxy"
)

// TestFaults creates, stops, starts and destroys sandboxes through a network that fails. Each error has a code, the
// provider, the sandbox, the operation and no key, and every sandbox that remains is listed, so that it can be destroyed.
// SANDPIT_TEST_FAULTS is about how many operations it makes.
func TestFaults(t *testing.T) {
	t.Parallel()
	c := newCloud(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	proxy := faultproxy.Start(t, faultproxy.Options{
		Target: strings.TrimSuffix(c.endpoint, "/api"), Seed: seed, Share: 0.25,
		Only: func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/api/") }, // a toolbox does not answer twice
	})
	o := c.options(t)
	o.Endpoint = proxy.URL + "/api"
	p := open(t, o)
	var mu sync.Mutex
	done := make(map[string]int)
	count := func(kind string, err error) bool {
		mu.Lock()
		defer mu.Unlock()
		done[kind+" "+string(sandpit.CodeOf(err))]++
		if err == nil {
			return true
		}
		if _, typed := errors.AsType[*sandpit.Error](err); !typed && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: an error without a code: %v", kind, err)
		}
		s := sandpit.SubjectOf(err)
		if s.Provider != "daytona" || s.Operation == "" || s.Sandbox == "" && kind != "list" {
			t.Errorf("%s: the error concerns %+v, want provider, sandbox and operation: %v", kind, s, err)
		}
		if strings.Contains(err.Error(), c.key) {
			t.Errorf("%s: the error contains the key", kind)
		}
		return false
	}
	const workers, steps = 3, 5 // a round has five operations
	rounds := 3
	if n, err := strconv.Atoi(os.Getenv("SANDPIT_TEST_FAULTS")); err == nil {
		rounds = n/workers/steps + 1
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range rounds {
				liveAmongFaults(t, p, count)
			}
		})
	}
	wg.Wait()
	t.Logf("requests: %v; outcomes: %v", proxy.Counts(), done)
	if done["create "] == 0 {
		t.Error("no sandbox was created")
	}
	proxy.Heal()
	list, err := p.List(within(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range list {
		left, err := p.Attach(within(t), one.Handle)
		if err == nil {
			err = left.Destroy(within(t))
		}
		if err != nil {
			t.Errorf("destroy what is left: %v", err)
		}
	}
	if left := c.names(t, o.Manager); len(left) > 0 {
		t.Errorf("left and not listed: %v", left)
	}
}

// liveAmongFaults takes one sandbox through its life.
func liveAmongFaults(t *testing.T, p sandpit.Provider, count func(string, error) bool) {
	t.Helper()
	ctx := within(t)
	box, err := p.Create(ctx, sandpit.NewID(), sandpit.Spec{})
	if !count("create", err) {
		return
	}
	if stopper, ok := box.(sandpit.Stopper); ok && count("stop", stopper.Stop(ctx)) {
		count("start", stopper.Start(ctx))
	}
	_, err = p.List(ctx)
	count("list", err)
	if count("destroy", box.Destroy(ctx)) {
		_, err := p.Attach(ctx, box.Handle())
		if code := sandpit.CodeOf(err); err == nil || code == "" {
			t.Errorf("a destroyed sandbox can be attached")
		}
	}
}
