package watch

import (
	"time"

	"golang.org/x/sys/unix"

	sandpit "github.com/sandpit-dev/sandpit"
)

// lateness is how late an event may arrive. A scan may see a change shortly before the kernel queues its event: of
// new files in gVisor, of renames in Linux too.
const lateness = time.Second

// barrier is a point in the stream of events: when it is passed, all events of changes before its creation have been
// handled.
type barrier struct {
	at    int64     // offset in the stream of events
	until time.Time // deadline for late events
}

func (t *tree) newBarrier() barrier {
	return barrier{at: t.total + t.queuedBytes(), until: time.Now().Add(lateness)}
}

func (t *tree) isPassed(f barrier, now time.Time) bool { return f.at <= t.at && !now.Before(f.until) }

// passBarriers drops what waits for barriers that are passed.
func (t *tree) passBarriers(now time.Time) {
	t.forgetFound(now)
	if now.Before(t.sweep) {
		return
	}
	t.sweep = now.Add(lateness)
	for n, f := range t.detached {
		if t.isPassed(f, now) {
			t.forgetNode(n)
		}
	}
}

// reportFound reports an entry that a scan has found in n as created.
func (t *tree) reportFound(n *node, name string) {
	if _, ok := n.found[name]; ok || n.top() != t.root {
		return
	}
	if t.found >= t.limits.events {
		t.forgetFound(time.Now().Add(lateness)) // as if all late events had arrived
	}
	if t.found >= t.limits.events {
		t.queue.pushError(errLost)
		return
	}
	if n.found == nil {
		n.found = map[string]struct{}{}
	}
	n.found[name] = struct{}{}
	t.found++
	t.queue.pushEvent(Event{n.pathOf(name), sandpit.FileCreated})
}

// forgetFound drops the names that scans have found once their barriers are passed.
func (t *tree) forgetFound(now time.Time) {
	for len(t.withBarrier) > 0 && t.isPassed(t.withBarrier[0].barrier, now) {
		t.clearFound(t.withBarrier[0])
		t.withBarrier = t.withBarrier[1:]
	}
}

func (t *tree) clearFound(n *node) {
	t.found -= len(n.found)
	n.found = nil
}

// wasFound reports whether a scan has already reported the change c.
func (t *tree) wasFound(n *node, c change) bool {
	if _, ok := n.found[c.name]; !ok {
		return false
	}
	delete(n.found, c.name)
	t.found--
	// A file moved in later may have replaced the one that was found.
	return c.hasAny(unix.IN_CREATE) || c.at < n.barrier.at
}
