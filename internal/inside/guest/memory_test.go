package guest

import (
	"os"
	"testing"
	"testing/synctest"
	"time"
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

// TestSpares kills a small program only when the last large one has freed its memory.
func TestSpares(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		large, equal, small := processMemory{pid: 2, pages: 100}, processMemory{pid: 3, pages: 90}, processMemory{pid: 4, pages: 20}
		now := time.Now()
		k := &lastKill{large, now, now}
		spares := func(what string, victim processMemory, want bool) {
			t.Helper()
			if got := k.spares(victim); got != want {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		spares("the killed one, which ends", large, true)
		spares("a small one", small, true)
		spares("one of about that size", equal, false)
		time.Sleep(exitLimit / 2)
		spares("the killed one, which still ends", large, true)
		time.Sleep(killPause - time.Millisecond)
		spares("a small one, just after", small, true)
		time.Sleep(time.Millisecond)
		spares("a small one, later", small, false)
		time.Sleep(exitLimit)
		spares("the killed one, which does not end", large, false)
	})
}
