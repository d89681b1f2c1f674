package manager

import (
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// templates orders what happens to builds.
type templates struct {
	mu      sync.Mutex
	running map[sandpit.BuildID]*running
	boxes   map[sandpit.ID]bool // in which builds do something
	spawned map[sandpit.TemplateID]int64
	closed  bool
}

func (t *templates) find(id sandpit.BuildID) *running {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running[id]
}

// begin enters a build, unless it is there, or all have been stopped.
func (t *templates) begin(id sandpit.BuildID, r *running) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.running[id] != nil {
		return false
	}
	if t.running == nil {
		t.running = make(map[sandpit.BuildID]*running)
	}
	t.running[id] = r
	return true
}

func (t *templates) end(id sandpit.BuildID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, id)
}

// stop ends all builds, and lets none begin.
func (t *templates) stop(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, r := range t.running {
		r.cancel(why)
	}
}

// houses notes whether a build does something in a sandbox.
func (t *templates) houses(id sandpit.ID, yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.boxes == nil {
		t.boxes = make(map[sandpit.ID]bool)
	}
	if t.boxes[id] = yes; !yes {
		delete(t.boxes, id)
	}
}

func (t *templates) has(id sandpit.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.boxes[id]
}

func (t *templates) count(id sandpit.TemplateID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.spawned == nil {
		t.spawned = make(map[sandpit.TemplateID]int64)
	}
	t.spawned[id]++
}
