package watch

import (
	"time"

	"golang.org/x/sys/unix"

	sandpit "github.com/sandpit-dev/sandpit"
)

// grace is for how long an event may come late. Others may see what has happened
// shortly before the kernel queues the event: of new files in gVisor, of renames
// in Linux too.
const grace = time.Second

// fence stands where all events have been handled that tell what had happened
// when it was put up.
type fence struct {
	at    int64     // in the stream of events
	until time.Time // the grace for late ones
}

func (t *tree) newFence() fence {
	return fence{at: t.total + t.waiting(), until: time.Now().Add(grace)}
}

func (t *tree) passed(f fence, now time.Time) bool { return f.at <= t.at && !now.Before(f.until) }

// passFences forgets what is behind fences that are passed.
func (t *tree) passFences(now time.Time) {
	t.forgetFound(now)
	if now.Before(t.sweep) {
		return
	}
	t.sweep = now.Add(grace)
	for n, f := range t.loose {
		if t.passed(f, now) {
			t.forget(n)
		}
	}
}

// find tells as created what a scan has found in n.
func (t *tree) find(n *node, name string) {
	if _, ok := n.found[name]; ok || n.top() != t.root {
		return
	}
	if t.found >= t.limits.events {
		t.forgetFound(time.Now().Add(grace)) // do without the grace
	}
	if t.found >= t.limits.events {
		t.queue.lose(errLost)
		return
	}
	if n.found == nil {
		n.found = map[string]struct{}{}
	}
	n.found[name] = struct{}{}
	t.found++
	t.queue.push(Event{n.join(name), sandpit.FileCreated})
}

// forgetFound forgets what scans have found once their fences are passed.
func (t *tree) forgetFound(now time.Time) {
	for len(t.fenced) > 0 && t.passed(t.fenced[0].fence, now) {
		t.unfind(t.fenced[0])
		t.fenced = t.fenced[1:]
	}
}

func (t *tree) unfind(n *node) {
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
	return c.has(unix.IN_CREATE) || c.at < n.fence.at
}
