package queue_test

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

func TestStopWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.NewMemory()
		for range 20 {
			later(t, q, 0)
		}
		var ended atomic.Int64
		w := work(t, q, func(context.Context, queue.Message) error {
			time.Sleep(time.Minute)
			ended.Add(1)
			return nil
		})
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
		defer cancel()
		if err := w.Stop(ctx); err != nil || ended.Load() != 8 {
			t.Errorf("stop: error %v, %d had ended; want the 8 that ran", err, ended.Load())
		}
		later(t, q, 0)
		w.Wake()
		time.Sleep(time.Hour)
		wantStats(t, q, queue.Stats{Pending: 13})
	})
}

func TestStopHandsBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.NewMemory()
		m := later(t, q, 0)
		m.Metadata = nil
		w := work(t, q, func(ctx context.Context, _ queue.Message) error {
			<-ctx.Done()
			return sandpit.Errorf(sandpit.Invalid, "interrupted: %w", context.Cause(ctx)) // not judged
		})
		time.Sleep(time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		begin := time.Now()
		if err := w.Stop(ctx); err != nil || time.Since(begin) > 1100*time.Millisecond {
			t.Errorf("stop: error %v after %v", err, time.Since(begin))
		}
		got := make(chan queue.Message, 1)
		work(t, q, func(_ context.Context, m queue.Message) error { got <- m; return nil })
		time.Sleep(100 * time.Millisecond)
		if diff := cmp.Diff(m, <-got); diff != "" {
			t.Errorf("the next worker got (-want +got):\n%s", diff)
		}
	})
}

// TestStartContext ends the context a worker was started with.
func TestStartContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.NewMemory()
		later(t, q, 0)
		ctx, cancel := context.WithCancel(t.Context())
		w, err := queue.StartWorker(ctx, queue.WorkerOptions{Queue: q, Topics: []string{topic}, Handler: func(ctx context.Context, _ queue.Message) error {
			<-ctx.Done()
			return ctx.Err()
		}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		cancel()
		synctest.Wait()
		wantStats(t, q, queue.Stats{Claimed: 1})
		if next, ok, _ := q.Next(t.Context(), []string{topic}); !ok || next.After(time.Now()) {
			t.Errorf("next = %v, %t; want the message handed back", next, ok)
		}
		if err := w.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
}

// TestStopIsPatient has a handler that does not heed its context.
func TestStopIsPatient(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.NewMemory()
		m := later(t, q, 0)
		var calls atomic.Int64
		deaf := func(context.Context, queue.Message) error {
			calls.Add(1)
			time.Sleep(time.Hour)
			return nil
		}
		w := work(t, q, deaf)
		time.Sleep(time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		err := w.Stop(ctx)
		if !errors.Is(err, sandpit.Timeout) || !strings.Contains(err.Error(), "busy with deadline of "+string(m.Sandbox)) {
			t.Errorf("error %v, want Timeout that names what is left", err)
		}
		work(t, q, deaf) // gets nothing while the other still runs
		time.Sleep(2 * time.Hour)
		if calls.Load() != 1 {
			t.Errorf("called %d times, want once", calls.Load())
		}
		wantStats(t, q, queue.Stats{})
	})
}
