package guest

import (
	"os"
	"testing"
)

func TestKeepThreads(t *testing.T) {
	const n = 40
	keepThreads(n)
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if len(threads) < n {
		t.Errorf("there are %d threads, fewer than %d", len(threads), n)
	}
}
