package native_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// TestClient asks everything that the client of this module can ask.
func TestClient(t *testing.T) {
	t.Parallel()
	r := newRig(t, nil)
	ctx := t.Context()
	c, err := client.New(client.Options{URL: r.url, Key: r.admin})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ok := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	s, err := c.Sandboxes.Create(ctx, client.CreateRequest{Spec: sandpit.Spec{Labels: map[string]string{"a": "b"}}, Timeout: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	list, err := c.Sandboxes.List(ctx, client.Filter{Labels: map[string]string{"a": "b"}, States: []sandpit.State{sandpit.StateRunning}})
	if err != nil || len(list) != 1 {
		t.Errorf("list: %v, %v", list, err)
	}
	ok("ready", c.Ready(ctx))
	_, err = c.Version(ctx)
	ok("version", err)
	_, err = c.Stats(ctx)
	ok("stats", err)
	_, err = c.Pools(ctx)
	ok("pools", err)
	_, err = c.Providers(ctx)
	ok("providers", err)
	made, err := c.Keys.Create(ctx, "eve", "n", time.Hour, false)
	ok("make a key", err)
	keys, err := c.Keys.List(ctx)
	if err != nil || len(keys) != 4 {
		t.Errorf("keys: %v, %v", keys, err)
	}
	ok("delete a key", c.Keys.Delete(ctx, made.ID))
	img, err := c.Images.Pull(ctx, api.Pull{Name: "python:3", Always: true}, nil)
	ok("pull", err)
	_, err = c.Images.List(ctx, "")
	ok("images", err)
	ok("remove an image", c.Images.Remove(ctx, "", img.ID))
	if _, err := c.Images.Pull(ctx, api.Pull{Name: "/etc"}, nil); !errors.Is(err, sandpit.Invalid) {
		t.Errorf("pull a directory: %v", err)
	}
	queued, err := c.Queue.List(ctx, false)
	if err != nil || len(queued) != 1 {
		t.Errorf("queue: %v, %v", queued, err)
	}
	id := bury(t, r)
	ok("retry", c.Queue.Retry(ctx, id))
	if err := c.Queue.Drop(ctx, "x"); !errors.Is(err, sandpit.NotFound) {
		t.Errorf("drop nothing: %v", err)
	}
	// More than fits on a page.
	for range 2 {
		events := make([]store.Event, 600)
		for i := range events {
			events[i] = store.Event{Actor: "crowd", Action: fmt.Sprint("event ", i), Result: "ok"}
		}
		ok("append", r.store.Events().AppendEvents(ctx, events...))
	}
	events, err := c.Events.List(ctx, client.EventFilter{Actor: "crowd"})
	if err != nil || len(events) != 1200 {
		t.Errorf("%d events, %v", len(events), err)
	}
	v, err := c.Events.Verify(ctx)
	if err != nil || !v.OK {
		t.Errorf("verdict %+v, %v", v, err)
	}
	for _, step := range []func() error{
		func() error { return c.Sandboxes.Pause(ctx, s.ID) },
		func() error { return c.Sandboxes.Resume(ctx, s.ID) },
		func() error { return c.Sandboxes.Stop(ctx, s.ID) },
		func() error { return c.Sandboxes.Archive(ctx, s.ID) },
		func() error { return c.Sandboxes.Restore(ctx, s.ID) },
		func() error { return c.Sandboxes.Start(ctx, s.ID) },
		func() error { return c.Sandboxes.SetTimeout(ctx, s.ID, time.Minute, sandpit.ActionStop) },
		func() error { return c.Sandboxes.SetDeadline(ctx, s.ID, sandpit.Lease{}) },
		func() error {
			p := s.Policy
			p.IdleTimeout, p.AutoDelete = -1, time.Hour
			return c.Sandboxes.SetPolicy(ctx, s.ID, p)
		},
		func() error { return c.Sandboxes.SetLabels(ctx, s.ID, map[string]string{"c": "d"}) },
		func() error { return c.Sandboxes.Rename(ctx, s.ID, "renamed") },
		func() error { return c.Sandboxes.Resize(ctx, s.ID, sandpit.Resources{CPUs: 3}) },
	} {
		ok("change it", step())
	}
	if got, err := r.Get(s.ID); err != nil || !got.Lease.Deadline.IsZero() || got.Spec.Labels["c"] != "d" || got.Spec.Name != "renamed" || got.Spec.Resources.CPUs != 3 || got.State != sandpit.StateRunning {
		t.Errorf("it is %+v, %v", got, err)
	}
	list, err = c.Sandboxes.List(ctx, client.Filter{})
	ok("list", err)
	want := sandpit.Policy{IdleTimeout: -time.Second, IdleAction: sandpit.ActionSuspend, AutoDelete: time.Hour}
	for _, got := range list {
		if got.ID == s.ID && (got.Policy != want || got.Lease.Action != sandpit.ActionStop) {
			t.Errorf("the client has the policy %+v and the lease %+v", got.Policy, got.Lease)
		}
	}
	_, err = c.Sandboxes.Stats(ctx, s.ID)
	ok("measure", err)
	ok("delete", c.Sandboxes.Delete(ctx, s.ID))
}
