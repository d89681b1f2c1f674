package queue_test

import (
	"context"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

// BenchmarkCycle schedules, claims and completes one message among a thousand
// that are not due.
func BenchmarkCycle(b *testing.B) { each(b, benchCycle) }

func benchCycle(b *testing.B, q queue.Queue) {
	b.Helper()
	for range 1000 {
		put(b, q, time.Hour)
	}
	for b.Loop() {
		put(b, q, 0)
		claims, err := q.Claim(b.Context(), time.Now(), []string{topic}, 8, time.Minute)
		if err != nil || len(claims) != 1 {
			b.Fatalf("claimed %d, error %v", len(claims), err)
		}
		if err := q.Complete(b.Context(), claims[0]); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLateness measures how late a worker is.
func BenchmarkLateness(b *testing.B) { each(b, benchLateness) }

func benchLateness(b *testing.B, q queue.Queue) {
	b.Helper()
	late := make(chan time.Duration)
	w, err := queue.StartWorker(b.Context(), queue.WorkerOptions{
		Queue: q, Topics: []string{topic},
		Handler: func(_ context.Context, m queue.Message) error {
			late <- time.Since(m.Due)
			return nil
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	var sum, most time.Duration
	for b.Loop() {
		put(b, q, 20*time.Millisecond)
		w.Wake()
		d := <-late
		sum, most = sum+d, max(most, d)
	}
	b.ReportMetric(float64(sum.Microseconds())/float64(b.N), "µs-late")
	b.ReportMetric(float64(most.Microseconds()), "µs-late-max")
	if err := w.Stop(b.Context()); err != nil {
		b.Fatal(err)
	}
}

func put(b *testing.B, q queue.Queue, d time.Duration) {
	b.Helper()
	_, err := q.Schedule(b.Context(), queue.Message{Topic: topic, Sandbox: sandpit.NewID(), Kind: "idle", Due: time.Now().Add(d)})
	if err != nil {
		b.Fatal(err)
	}
}

// each runs a benchmark on every queue of this package.
func each(b *testing.B, bench func(b *testing.B, q queue.Queue)) {
	b.Helper()
	b.Run("memory", func(b *testing.B) { bench(b, queue.NewMemory()) })
	b.Run("redis", func(b *testing.B) {
		q, err := queue.NewRedis(queue.RedisOptions{URL: startServer(b).url(), Prefix: usualPrefix})
		if err != nil {
			b.Fatal(err)
		}
		defer q.Close()
		bench(b, q)
	})
}
