package watch

import (
	"time"

	"golang.org/x/sys/unix"

	sandpit "github.com/sandpit-dev/sandpit"
)

// lateness is for how long an event may come late. Others may see what has happened
// shortly before the kernel queues the event: of new files in gVisor, of renames
// in Linux too.
const lateness = time.Second

// barrier stands where all events have been handled that tell what had happened
// when it was put up.
type barrier struct {
	at    int64     // in the stream of events
	until time.Time // the grace for late ones
}

func (t *tree) newBarrier() barrier {
	return barrier{at: t.total + t.queuedBytes(), until: time.Now().Add(lateness)}
}

func (t *tree) isPassed(f barrier, now time.Time) bool { return f.at <= t.at && !now.Before(f.until) }

// passBarriers forgets what is behind fences that are passed.
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

// reportFound tells as created what a scan has found in n.
func (t *tree) reportFound(n *node, name string) {
	if _, ok := n.found[name]; ok || n.top() != t.root {
		return
	}
	if t.found >= t.limits.events {
		t.forgetFound(time.Now().Add(lateness)) // do without the grace
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

// forgetFound forgets what scans have found once their fences are passed.
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

// wasFound reports whether a scan has told already what c tells.
func (t *tree) wasFound(n *node, c change) bool {
	if _, ok := n.found[c.name]; !ok {
		return false
	}
	delete(n.found, c.name)
	t.found--
	// What is moved in later may have replaced what was found.
	return c.hasAny(unix.IN_CREATE) || c.at < n.barrier.at
}
