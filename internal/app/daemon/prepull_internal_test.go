package daemon

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestPrePull has images that come at once, after a while, and never.
func TestPrePull(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	tries := make(map[sandpit.Image]int)
	prepare := func(_ context.Context, image sandpit.Image) error {
		mu.Lock()
		defer mu.Unlock()
		tries[image]++
		switch {
		case image == "later" && tries[image] < 3:
			return sandpit.Errorf(sandpit.Unavailable, "try %d", tries[image])
		case image == "never":
			return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "no such image"), "look again")
		case image == "nonsense":
			return sandpit.Errorf(sandpit.Invalid, "no name")
		}
		return nil
	}
	log := &pages{}
	p := newPrePuller([]string{"once", "later", "never", "nonsense"}, prepare, slog.New(slog.NewTextHandler(log, nil)))
	p.pause = time.Microsecond
	if got := p.listStatus()[0].State; got != wire.PrePullWaiting {
		t.Errorf("at first: %s", got)
	}
	p.pullAll(t.Context())
	want := []wire.PrePull{
		{Image: "once", State: wire.PrePullReady, Tries: 1},
		{Image: "later", State: wire.PrePullReady, Tries: 3},
		{Image: "never", State: wire.PrePullFailed, Tries: prePullTries, Error: "no such image"},
		{Image: "nonsense", State: wire.PrePullFailed, Tries: 1, Error: "no name"},
	}
	if diff := cmp.Diff(want, p.listStatus()); diff != "" {
		t.Error(diff)
	}
	for _, line := range []string{"pre-pull: the image is ready", "again_in=", "given up", `hint="look again"`} {
		if !strings.Contains(log.String(), line) {
			t.Errorf("the log does not say %q:\n%s", line, log)
		}
	}
}

// TestPrePullEnds ends while one image is fetched and another waits to be tried again.
func TestPrePullEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	fetching := make(chan struct{})
	p := newPrePuller([]string{"slow", "failing"}, func(ctx context.Context, image sandpit.Image) error {
		if image == "failing" {
			return sandpit.Errorf(sandpit.Unavailable, "not yet")
		}
		close(fetching)
		<-ctx.Done()
		return ctx.Err()
	}, slog.New(slog.DiscardHandler))
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.pullAll(ctx)
	}()
	<-fetching
	cancel()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("it continues")
	}
}

// TestServePrePull starts a server whose images cannot be fetched ahead: it is ready all
// the same, and tells of it.
func TestServePrePull(t *testing.T) {
	t.Parallel()
	r := start(t, configured(t, "[image]", "pre_pull = ['python:3.12-slim']"), fakes(newWorld(t)))
	r.ask(http.MethodGet, "/readyz", "", http.StatusOK)
	var page wire.Page[wire.PrePull]
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if err := json.Unmarshal([]byte(r.ask(http.MethodGet, "/v1/images/pre-pull", "", http.StatusOK)), &page); err != nil {
			t.Fatal(err)
		}
		if len(page.Items) == 1 && page.Items[0].State == wire.PrePullFailed {
			break
		}
	}
	if len(page.Items) != 1 || page.Items[0].State != wire.PrePullFailed || !strings.Contains(page.Items[0].Error, "fetches no images ahead") {
		t.Errorf("it tells %+v", page.Items)
	}
}
