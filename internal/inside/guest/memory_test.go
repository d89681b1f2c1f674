package guest

import (
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// TestLargest checks which program is killed when memory has run out.
func TestLargest(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		all  []processMemory
		want int
	}{
		"no process":           {nil, 0},
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

// TestChooseVictim kills a small program only when the large ones have freed their memory.
func TestChooseVictim(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var k recentKills
		large, second, third, small := processMemory{pid: 2, pages: 100}, processMemory{pid: 3, pages: 60}, processMemory{pid: 4, pages: 26}, processMemory{pid: 5, pages: 20}
		wants := func(what string, want int, all ...processMemory) {
			t.Helper()
			if victim, found := k.chooseVictim(all); found != (want != 0) || found && victim.pid != want {
				t.Errorf("%s: %d, %v; want %d", what, victim.pid, found, want)
			}
		}
		wants("the largest", 2, large, second, third, small)
		if time.Sleep(killDelay - time.Millisecond); !k.isSettling() {
			t.Error("orders are obeyed before the memory can be free")
		}
		if time.Sleep(time.Millisecond); k.isSettling() {
			t.Errorf("orders are still ignored after %v", killDelay)
		}
		wants("another large one, although the first still ends", 3, large, second, third, small)
		wants("the next", 4, third, small)
		wants("none: the rest is small", 0, third, small)
		time.Sleep(exitLimit - time.Millisecond)
		wants("none: the last one still ends", 0, third, small)
		wants("none: its memory may not be free", 0, small)
		time.Sleep(killPause - time.Millisecond)
		wants("none, just before", 0, small)
		time.Sleep(time.Millisecond)
		wants("a small one, later", 5, small)
		wants("none", 0)
	})
}
