package queue_test

import (
	"errors"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
)

func TestWorkerOptions(t *testing.T) {
	t.Parallel()
	good := queue.WorkerOptions{Queue: queue.NewMemory(), Topics: []string{topic}, Handler: fails(nil)}
	for name, change := range map[string]func(*queue.WorkerOptions){
		"queue":       func(o *queue.WorkerOptions) { o.Queue = nil },
		"handler":     func(o *queue.WorkerOptions) { o.Handler = nil },
		"topics":      func(o *queue.WorkerOptions) { o.Topics = nil },
		"topic":       func(o *queue.WorkerOptions) { o.Topics = []string{"*"} },
		"concurrency": func(o *queue.WorkerOptions) { o.Concurrency = -1 },
		"retries":     func(o *queue.WorkerOptions) { o.MaxRetries = -1 },
		"visibility":  func(o *queue.WorkerOptions) { o.Visibility = time.Microsecond },
		"poll":        func(o *queue.WorkerOptions) { o.Poll = -1 },
		"backoff":     func(o *queue.WorkerOptions) { o.Backoff = 25 * time.Hour },
		"max backoff": func(o *queue.WorkerOptions) { o.MaxBackoff = -1 },
	} {
		o := good
		change(&o)
		if _, err := queue.StartWorker(t.Context(), o); !errors.Is(err, sandpit.Invalid) {
			t.Errorf("%s: error %v, want Invalid", name, err)
		}
	}
}
