package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// typical makes a row one as most are.
func typical(r *store.Row) {
	r.Spec = sandpit.Spec{
		Image:     "docker.io/library/python:3.13-slim",
		Labels:    map[string]string{"sandpit.manager": "0123456789abcdef0123456789abcdef", "team": "blue"},
		Resources: sandpit.Resources{Memory: 1 << 30, CPUs: 2},
	}
	r.Policy = store.Policy{IdleTimeout: time.Hour}
}

// full returns a directory with 1,000 sandboxes.
func full(b *testing.B, shape func(*store.Row)) string {
	b.Helper()
	dir := b.TempDir()
	s := open(b, dir)
	for i := range 1000 {
		insert(b, s, func(r *store.Row) { shape(r); r.Lease.Owner = fmt.Sprint("owner", i%10) })
	}
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	return dir
}

func BenchmarkOpen1000(b *testing.B) {
	dir := full(b, typical)
	for b.Loop() {
		s, err := store.Open(b.Context(), dir, store.Options{})
		if err != nil {
			b.Fatal(err)
		}
		list, err := s.Sandboxes().ListSandboxes(b.Context(), store.Filter{})
		if err != nil || len(list) != 1000 {
			b.Fatal(len(list), err)
		}
		if err := s.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkList1000(b *testing.B) {
	s, large := open(b, full(b, typical)), open(b, full(b, func(*store.Row) {}))
	for name, bc := range map[string]struct {
		store  *store.Store
		filter store.Filter
	}{
		"all":              {s, store.Filter{}},
		"all, every field": {large, store.Filter{}},
		"owner":            {s, store.Filter{Owner: "owner3"}},
		"labels":           {s, store.Filter{Labels: map[string]string{"team": "red"}}},
		"page":             {s, store.Filter{Limit: 50}},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := bc.store.Sandboxes().ListSandboxes(b.Context(), bc.filter); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCommit(b *testing.B) {
	ctx := b.Context()
	s := open(b, b.TempDir())
	q := s.Queue()
	r := insert(b, s, nil)
	m := queue.Message{Topic: "a", Sandbox: r.ID, Kind: "idle", Due: begin}
	for name, do := range map[string]func() error{
		"insert": func() error { _, err := s.Sandboxes().InsertSandbox(ctx, row()); return err },
		"update": func() (err error) { r, err = s.Sandboxes().UpdateSandbox(ctx, r); return err },
		"touch":  func() error { return s.Sandboxes().TouchSandboxes(ctx, map[sandpit.ID]time.Time{r.ID: begin}) },
		"event":  func() error { return s.Events().AppendEvents(ctx, store.Event{Actor: "a", Action: "create"}) },
		"get":    func() error { _, err := s.Sandboxes().Sandbox(ctx, r.ID); return err },
		"queue": func() error {
			if _, err := q.Schedule(ctx, m); err != nil {
				return err
			}
			list, err := q.Claim(ctx, begin, []string{"a"}, 1, time.Minute)
			if err != nil {
				return err
			}
			return q.Complete(ctx, list[0])
		},
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := do(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
