package chaos_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Variables for a longer run.
const (
	boxesVariable   = "SANDPIT_TEST_CROWD_BOXES"
	secondsVariable = "SANDPIT_TEST_CROWD_SECONDS"
)

// settled is from how many seconds on the memory is judged: before, sandboxes have
// not got yet what they need.
const settled = 120

// TestCrowd makes many sandboxes at once and has a client work in each for a while:
// nothing fails, and the memory of all together stays what it was.
func TestCrowd(t *testing.T) {
	boxes, seconds := number(boxesVariable, 12), number(secondsVariable, 6)
	w := newWorld(t, boxes+2)
	w.start()
	keys := make([]call, boxes)
	for i := range keys {
		keys[i] = call{Op: "create", Key: fmt.Sprintf("crowd%d", i)}
	}
	ids := make([]call, boxes)
	took := make([]time.Duration, boxes)
	begin := time.Now()
	var group sync.WaitGroup
	for i, c := range keys {
		group.Go(func() {
			start := time.Now()
			r := w.must(c)
			took[i], ids[i] = time.Since(start), call{Op: "run", ID: r.Sandbox.ID, Key: c.Key}
		})
	}
	group.Wait()
	slices.Sort(took)
	t.Logf("%d sandboxes at once: all in %s, each p50 %s, p99 %s", boxes, time.Since(begin).Round(time.Millisecond),
		took[boxes/2].Round(time.Millisecond), took[boxes*99/100].Round(time.Millisecond))

	ctx, cancel := context.WithTimeout(t.Context(), time.Duration(seconds)*time.Second)
	defer cancel()
	var done atomic.Int64
	for _, c := range ids {
		group.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				c.Command = fmt.Sprintf("cat /workspace/key; echo %d > /tmp/n; cat /tmp/n", n)
				if got, want := w.must(c).Output, fmt.Sprintf("%s\n%d\n", c.Key, n); got != want {
					w.fault("sandbox %s: %q, want %q", c.ID, got, want)
				}
				done.Add(1)
			}
		})
	}
	var early int64
	select { // when all have got what they need
	case <-time.After(time.Duration(seconds) * time.Second / 3):
		early = w.memory()
	case <-ctx.Done():
	}
	<-ctx.Done()
	late := w.memory()
	group.Wait()
	t.Logf("%d commands in %d s; memory of all: %d MB after a third of the time, %d MB at the end", done.Load(), seconds, early>>20, late>>20)
	if seconds >= settled && float64(late) > 1.1*float64(early) {
		t.Errorf("memory grew from %d to %d bytes", early, late)
	}
	w.deleteAll()
	w.must(call{Op: "close"})
	w.kill()
	w.expectNothing()
	if len(w.faults) > 0 {
		t.Errorf("%d faults:\n%s", len(w.faults), strings.Join(w.faults[:min(len(w.faults), 20)], "\n"))
	}
}

// memory returns the memory of the server and of all that belongs to sandboxes, in
// bytes; what processes share counts once.
func (w *world) memory() int64 {
	pids := []int{w.server.Process.Pid}
	for _, p := range w.processes() {
		pids = append(pids, p.pid)
	}
	var sum int64
	for _, pid := range pids {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)) // one that has just ended has none
		lines := bufio.NewScanner(bytes.NewReader(text))
		for lines.Scan() {
			if f := strings.Fields(lines.Text()); len(f) == 3 && f[0] == "Pss:" {
				kb, _ := strconv.ParseInt(f[1], 10, 64)
				sum += kb << 10
			}
		}
	}
	return sum
}
