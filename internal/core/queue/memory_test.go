package queue_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/queue/queuetest"
)

func TestMemory(t *testing.T) {
	t.Parallel()
	queuetest.Run(t, func(*testing.T) queue.Queue { return queue.NewMemory() })
}
