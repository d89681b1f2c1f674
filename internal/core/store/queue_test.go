package store_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/queue/queuetest"
)

func TestQueue(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, func(t *testing.T) queue.Queue {
		t.Helper()
		return open(t, t.TempDir()).Queue()
	})
}
