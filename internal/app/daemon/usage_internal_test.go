package daemon

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// TestUsageKill has a program eat the memory of a real sandbox. There is a warning, and
// the sandbox is stopped when it starts again.
func TestUsageKill(t *testing.T) {
	t.Parallel()
	cfg := configured(t, "[usage]", "interval = '200ms'", "memory = 50", "cpu = 0", "disk = 0", "pids = 0", "action = 'kill'", "sustained = '1s'")
	cfg.Provider, cfg.Engine = "gvisor", testengine.Path(t)
	r := start(t, cfg, registrations())
	c := r.dial()
	s, err := c.Sandboxes.Create(t.Context(), client.CreateRequest{Spec: sandpit.Spec{Resources: sandpit.Resources{Memory: 256 << 20}}})
	if err != nil {
		t.Fatalf("%v\n%s", err, r.log)
	}
	if stats, err := s.Stats(t.Context()); err != nil || stats.Limits.Memory == 0 {
		testengine.Skip(t, "memory cannot be limited here")
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	const eat = `import time; kept = b"x" * (160 << 20); time.sleep(600)`
	if res, err := s.RunWith(ctx, client.RunOptions{}, "python3", "-c", eat); err == nil {
		t.Fatalf("the program has ended by itself: %+v", res)
	}
	var actions string
	for ctx.Err() == nil && !strings.Contains(actions, "usage kill") { // events are written a moment later
		events, err := c.Events.List(ctx, client.EventFilter{Sandbox: s.ID})
		if err != nil {
			t.Fatal(err)
		}
		var list strings.Builder
		for _, e := range events {
			list.WriteString(e.Action + " " + e.Args["kind"] + "\n")
		}
		actions = list.String()
		time.Sleep(20 * time.Millisecond)
	}
	got, err := c.Sandboxes.Get(t.Context(), s.ID)
	if err != nil || got.State != sandpit.StateStopped || !strings.HasPrefix(got.Reason, "used too much: memory at ") {
		t.Errorf("the sandbox is %s: %q, %v", got.State, got.Reason, err)
	}
	if !strings.Contains(actions, "usage warning memory\n") {
		t.Errorf("events: %s", actions)
	}
}
