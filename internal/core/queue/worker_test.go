package queue_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

const topic = "server"

// work starts a worker on q, and stops it at the end of the test.
func work(t *testing.T, q queue.Source, handler queue.Handler, change ...func(*queue.WorkerOptions)) *queue.Worker {
	t.Helper()
	o := queue.WorkerOptions{Queue: q, Topics: []string{topic}, Handler: handler, MaxRetries: 3}
	for _, c := range change {
		c(&o)
	}
	w, err := queue.StartWorker(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("stop: %v", err)
		}
	})
	return w
}

// later schedules a message that is due in so long.
func later(t *testing.T, q queue.Queue, d time.Duration) queue.Message {
	t.Helper()
	m, err := q.Schedule(t.Context(), queue.Message{Topic: topic, Sandbox: sandpit.NewID(), Kind: "deadline", Due: time.Now().Add(d)})
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func wantStats(t *testing.T, q queue.Queue, want queue.Stats) {
	t.Helper()
	got, err := q.Stats(t.Context())
	got.OldestDue = time.Time{}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v, stats (-want +got):\n%s", err, diff)
	}
}

// record is a handler that records its calls and returns the configured result.
type record struct {
	mu    sync.Mutex
	begin time.Time
	calls []time.Duration
	err   error
}

func newRecord(err error) *record { return &record{begin: time.Now(), err: err} }

func (r *record) handle(context.Context, queue.Message) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, time.Since(r.begin))
	return r.err
}

func (r *record) at() []time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]time.Duration(nil), r.calls...)
}

func (r *record) want(t *testing.T, want ...time.Duration) {
	t.Helper()
	got := r.at()
	if len(got) != len(want) {
		t.Fatalf("called at %v, want %v", got, want)
	}
	for i, d := range got {
		if d < want[i] || d > want[i]+10*time.Millisecond {
			t.Errorf("called at %v, want %v", got, want)
		}
	}
}

func TestWorkerIsExact(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, r := queue.NewMemory(), newRecord(nil)
		later(t, q, 90*time.Minute+7*time.Millisecond)
		later(t, q, 0)
		later(t, q, 25*time.Hour)
		work(t, q, r.handle, func(o *queue.WorkerOptions) { o.Poll = 24 * time.Hour })
		time.Sleep(30 * time.Hour)
		r.want(t, 0, 90*time.Minute+7*time.Millisecond, 25*time.Hour)
		wantStats(t, q, queue.Stats{})
	})
}

func TestWorkerWakes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, r := queue.NewMemory(), newRecord(nil)
		w := work(t, q, r.handle, func(o *queue.WorkerOptions) { o.Poll = time.Hour })
		time.Sleep(time.Minute)
		later(t, q, time.Second)
		w.Wake()
		w.Wake()
		time.Sleep(time.Minute)
		r.want(t, 61*time.Second)
		later(t, q, 0) // by another process, which cannot wake this worker
		time.Sleep(2 * time.Hour)
		if got := r.at(); len(got) != 2 || got[1] > 2*time.Hour {
			t.Errorf("called at %v, want the second call when the worker polls", got)
		}
	})
}

func TestWorkerBacksOff(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, r := queue.NewMemory(), newRecord(sandpit.Errorf(sandpit.Unavailable, "no answer"))
		m := later(t, q, 0)
		work(t, q, r.handle)
		time.Sleep(30 * time.Minute)
		calls := r.at()
		if len(calls) != 4 {
			t.Fatalf("called at %v, want once and three times more", calls)
		}
		for i, base := range []time.Duration{60 * time.Second, 120 * time.Second, 240 * time.Second} {
			if d := calls[i+1] - calls[i]; d < base*8/10 || d > base*12/10+10*time.Millisecond {
				t.Errorf("retry %d after %v, want %v and a fifth at most", i+1, d, base)
			}
		}
		dead, err := q.List(t.Context(), queue.Filter{Dead: true})
		if err != nil || len(dead) != 1 || dead[0].ID != m.ID || dead[0].Attempts != 4 || dead[0].LastError != "no answer" {
			t.Errorf("dead letters %+v, error %v", dead, err)
		}
		wantStats(t, q, queue.Stats{Dead: 1})
	})
}

func TestWorkerBackoffIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, r := queue.NewMemory(), newRecord(errors.New("no"))
		later(t, q, 0)
		work(t, q, r.handle, func(o *queue.WorkerOptions) { o.MaxRetries, o.Poll = 100, time.Hour })
		time.Sleep(200 * time.Hour)
		calls := r.at()
		if len(calls) != 101 {
			t.Fatalf("called %d times, want 101", len(calls))
		}
		for i := 10; i < 100; i++ {
			if d := calls[i+1] - calls[i]; d < 48*time.Minute || d > time.Hour+10*time.Millisecond {
				t.Errorf("retry %d after %v, want an hour at most", i+1, d)
			}
		}
	})
}

func TestWorkerJudges(t *testing.T) {
	t.Parallel()
	pending, dead, gone := queue.Stats{Pending: 1}, queue.Stats{Dead: 1}, queue.Stats{}
	for name, tc := range map[string]struct {
		handler queue.Handler
		want    queue.Stats
	}{
		"done":             {fails(nil), gone},
		"not found":        {fails(sandpit.Errorf(sandpit.NotFound, "x")), gone},
		"gone":             {fails(sandpit.Gone), gone},
		"invalid":          {fails(sandpit.Errorf(sandpit.Invalid, "x")), dead},
		"unsupported":      {fails(sandpit.Errorf(sandpit.Unsupported, "x")), dead},
		"denied":           {fails(sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "x"), "y")), dead},
		"unauthenticated":  {fails(sandpit.Unauthenticated), dead},
		"conflict":         {fails(sandpit.Errorf(sandpit.Conflict, "x")), pending},
		"exhausted":        {fails(sandpit.Errorf(sandpit.Exhausted, "x")), pending},
		"internal":         {fails(errors.New("x")), pending},
		"canceled":         {fails(context.Canceled), pending},
		"a missing file":   {fails(&fs.PathError{Op: "open", Path: "x", Err: fs.ErrNotExist}), pending},
		"a forbidden file": {fails(fs.ErrPermission), pending},
		"panic":            {func(context.Context, queue.Message) error { panic("x") }, pending},
		"exit":             {func(context.Context, queue.Message) error { runtime.Goexit(); return nil }, pending},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				q := queue.NewMemory()
				later(t, q, 0)
				work(t, q, tc.handler)
				time.Sleep(30 * time.Second)
				wantStats(t, q, tc.want)
				list, err := q.List(t.Context(), queue.Filter{Dead: tc.want.Dead == 1})
				if err != nil || tc.want != gone && (len(list) != 1 || list[0].Attempts != 1 || list[0].LastError == "") {
					t.Errorf("message %+v, error %v", list, err)
				}
			})
		})
	}
}

func fails(err error) queue.Handler { return func(context.Context, queue.Message) error { return err } }

func TestWorkerNeverRetriesIfToldSo(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.NewMemory()
		later(t, q, 0)
		work(t, q, fails(errors.New("no")), func(o *queue.WorkerOptions) { o.MaxRetries = 0 })
		time.Sleep(time.Second)
		wantStats(t, q, queue.Stats{Dead: 1})
	})
}

// TestWorkerKeepsClaims runs handlers that take much longer than Visibility,
// beside another worker that would like to have their messages.
func TestWorkerKeepsClaims(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.NewMemory()
		var calls atomic.Int64
		slow := func(context.Context, queue.Message) error {
			calls.Add(1)
			time.Sleep(10 * time.Minute)
			return nil
		}
		for range 5 {
			later(t, q, 0)
		}
		work(t, q, slow)
		work(t, q, slow)
		time.Sleep(time.Hour)
		if calls.Load() != 5 {
			t.Errorf("called %d times for 5 messages", calls.Load())
		}
		wantStats(t, q, queue.Stats{})
	})
}

// TestWorkerLetsCancelledHandlersEnd cancels what runs, as a handler does that
// removes its own sandbox.
func TestWorkerLetsCancelledHandlersEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.NewMemory()
		var interrupted, ended atomic.Bool
		var log strings.Builder
		w := work(t, q, func(ctx context.Context, m queue.Message) error {
			if n, err := q.Cancel(ctx, m.Sandbox); n != 1 || err != nil {
				t.Errorf("cancelled %d, error %v", n, err)
			}
			time.Sleep(5 * time.Minute) // several extensions are refused meanwhile
			interrupted.Store(ctx.Err() != nil)
			ended.Store(true)
			return sandpit.Gone
		}, func(o *queue.WorkerOptions) {
			o.Log = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		})
		later(t, q, 0)
		time.Sleep(10 * time.Minute)
		if interrupted.Load() || !ended.Load() {
			t.Errorf("interrupted %t, ended %t", interrupted.Load(), ended.Load())
		}
		if err := w.Stop(t.Context()); err != nil || log.Len() > 0 {
			t.Errorf("stop: %v; nothing was wrong with the queue, but the log says:\n%s", err, log.String())
		}
		wantStats(t, q, queue.Stats{})
	})
}

func TestWorkerConcurrency(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := queue.NewMemory()
		var now, most, quick atomic.Int64
		for i := range 40 {
			later(t, q, time.Duration(i)*time.Millisecond)
		}
		first := later(t, q, -time.Second)
		work(t, q, func(_ context.Context, m queue.Message) error {
			most.Store(max(most.Load(), now.Add(1)))
			defer now.Add(-1)
			if m.ID == first.ID {
				time.Sleep(time.Hour)
				return nil
			}
			time.Sleep(time.Second)
			quick.Add(1)
			return nil
		}, func(o *queue.WorkerOptions) { o.Concurrency = 3 })
		time.Sleep(25 * time.Second)
		if quick.Load() != 40 || most.Load() != 3 {
			t.Errorf("%d quick ones done beside a slow one, %d at the same time; want 40 and 3", quick.Load(), most.Load())
		}
	})
}

// weak is a queue that can be out of reach.
type weak struct {
	queue.Queue
	down  atomic.Bool
	calls atomic.Int64
}

func (w *weak) err() error {
	if w.calls.Add(1); w.down.Load() {
		return sandpit.Errorf(sandpit.Unavailable, "out of reach")
	}
	return nil
}

func (w *weak) Claim(ctx context.Context, now time.Time, topics []string, n int, d time.Duration) ([]queue.Claim, error) {
	if err := w.err(); err != nil {
		return nil, err
	}
	return w.Queue.Claim(ctx, now, topics, n, d)
}

func (w *weak) Next(ctx context.Context, topics []string) (time.Time, bool, error) {
	if err := w.err(); err != nil {
		return time.Time{}, false, err
	}
	return w.Queue.Next(ctx, topics)
}

func (w *weak) Extend(ctx context.Context, c queue.Claim, until time.Time) (queue.Claim, error) {
	if err := w.err(); err != nil {
		return c, err
	}
	return w.Queue.Extend(ctx, c, until)
}

func (w *weak) Complete(ctx context.Context, c queue.Claim) error {
	if err := w.err(); err != nil {
		return err
	}
	return w.Queue.Complete(ctx, c)
}

func TestWorkerOutlivesFailures(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, r := &weak{Queue: queue.NewMemory()}, newRecord(nil)
		q.down.Store(true)
		var log strings.Builder
		w := work(t, q, r.handle, func(o *queue.WorkerOptions) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		later(t, q, 0)
		for range 3600 {
			time.Sleep(time.Second)
			w.Wake() // does not make it hurry
		}
		if n := q.calls.Load(); n < 700 || n > 730 {
			t.Errorf("%d calls in an hour of failures, want one every 5 s", n)
		}
		q.down.Store(false)
		time.Sleep(10 * time.Second)
		if got := r.at(); len(got) != 1 || got[0] > time.Hour+5*time.Second {
			t.Errorf("called at %v, want 5 s after the failures are over at the latest", got)
		}
		if err := w.Stop(t.Context()); err != nil {
			t.Fatal(err)
		}
		if lines := strings.Count(log.String(), "\n"); lines != 2 {
			t.Errorf("%d lines in the log, want one at either change:\n%s", lines, log.String())
		}
	})
}

// TestWorkerKeepsOutcomes loses the queue while a handler runs, for longer than
// a claim lasts: what was done is not done again.
func TestWorkerKeepsOutcomes(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &weak{Queue: queue.NewMemory()}
		var calls atomic.Int64
		work(t, q, func(context.Context, queue.Message) error {
			calls.Add(1)
			q.down.Store(true)
			time.Sleep(90 * time.Second)
			return nil
		})
		later(t, q, 0)
		time.Sleep(5 * time.Minute)
		q.down.Store(false)
		time.Sleep(5 * time.Minute)
		if calls.Load() != 1 {
			t.Errorf("called %d times, want once", calls.Load())
		}
		wantStats(t, q, queue.Stats{})
	})
}

// TestWorkerStopsWithoutQueue stops while the queue is out of reach.
func TestWorkerStopsWithoutQueue(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &weak{Queue: queue.NewMemory()}
		var log strings.Builder
		w := work(t, q, func(context.Context, queue.Message) error { q.down.Store(true); return nil },
			func(o *queue.WorkerOptions) { o.Log = slog.New(slog.NewTextHandler(&log, nil)) })
		later(t, q, 0)
		time.Sleep(time.Minute)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := w.Stop(ctx); err != nil {
			t.Error(err)
		}
		if !strings.Contains(log.String(), "result of an operation not recorded") {
			t.Errorf("the unrecorded result is not logged:\n%s", log.String())
		}
	})
}

// TestClockJumps sets the clock forward by a day: with Jumped nothing happens
// early, even if shifting fails at first.
func TestClockJumps(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, r, c := queue.NewMemory(), newRecord(nil), clock.NewJumping()
		later(t, q, time.Hour)
		var jumps []time.Duration
		w := work(t, q, r.handle, func(o *queue.WorkerOptions) {
			o.Clock = c
			o.Jumped = func(ctx context.Context, by time.Duration) error {
				if jumps = append(jumps, by); len(jumps) == 1 {
					return errors.New("not now")
				}
				return q.Shift(ctx, []string{topic}, by)
			}
		})
		time.Sleep(time.Minute)
		c.Jump(24 * time.Hour)
		w.Wake()
		time.Sleep(58 * time.Minute)
		r.want(t)
		c.Jump(-48 * time.Hour)
		time.Sleep(time.Hour)
		r.want(t, time.Hour)
		if diff := cmp.Diff([]time.Duration{24 * time.Hour, 24 * time.Hour, -48 * time.Hour}, jumps); diff != "" {
			t.Errorf("jumps (-want +got):\n%s", diff)
		}
	})
}

// TestWorkerKnowsItsOwn lets a claim run out by a jump of the clock while its
// handler runs, as it does when the machine sleeps: the worker gets the message
// again, and does not do it twice.
func TestWorkerKnowsItsOwn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q, c := queue.NewMemory(), clock.NewJumping()
		var calls atomic.Int64
		later(t, q, 0)
		work(t, q, func(context.Context, queue.Message) error {
			calls.Add(1)
			time.Sleep(5 * time.Minute)
			return nil
		}, func(o *queue.WorkerOptions) { o.Clock = c })
		time.Sleep(time.Second)
		c.Jump(24 * time.Hour)
		time.Sleep(10 * time.Minute)
		if calls.Load() != 1 {
			t.Errorf("called %d times, want once", calls.Load())
		}
		wantStats(t, q, queue.Stats{})
	})
}
