package guest

import (
	"os"
	"testing"
)

// TestLargest chooses who is killed when memory has run out.
func TestLargest(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		all  []processMemory
		want int
	}{
		"nobody":               {nil, 0},
		"the largest":          {[]processMemory{{2, 10, false}, {3, 30, false}, {4, 20, false}}, 3},
		"never ours":           {[]processMemory{{2, 90, true}, {3, 1, false}, {4, 2, false}, {5, 80, true}}, 4},
		"ours if there is one": {[]processMemory{{2, 10, true}, {3, 20, true}}, 3},
		"without any memory":   {[]processMemory{{2, 0, true}, {3, 0, false}}, 3},
	} {
		if got := largestProcess(tc.all); got.pid != tc.want {
			t.Errorf("%s: %d, want %d", name, got.pid, tc.want)
		}
	}
}

// TestHolders finds this process, and knows its program.
func TestHolders(t *testing.T) {
	t.Parallel()
	self := os.Getpid()
	for _, h := range listProcesses(0) {
		if h.pid == self && h.ours && h.pages > 0 {
			return
		}
	}
	t.Errorf("process %d is not among %+v", self, listProcesses(0))
}
