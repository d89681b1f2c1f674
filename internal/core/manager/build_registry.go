package manager

import (
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// buildRegistry has the running builds, their sandboxes, and the counts of created sandboxes.
type buildRegistry struct {
	mu        sync.Mutex
	running   map[sandpit.BuildID]*runningBuild
	sandboxes map[sandpit.ID]bool // of running builds
	spawned   map[sandpit.TemplateID]int64
	closed    bool
}

func (t *buildRegistry) findRunning(id sandpit.BuildID) *runningBuild {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running[id]
}

// addRunning adds a build, and reports false if it runs already or cancelAll was called.
func (t *buildRegistry) addRunning(id sandpit.BuildID, r *runningBuild) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.running[id] != nil {
		return false
	}
	if t.running == nil {
		t.running = make(map[sandpit.BuildID]*runningBuild)
	}
	t.running[id] = r
	return true
}

func (t *buildRegistry) removeRunning(id sandpit.BuildID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, id)
}

// cancelAll cancels all builds, and lets none begin.
func (t *buildRegistry) cancelAll(why error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.closed = true
	for _, r := range t.running {
		r.cancel(why)
	}
}

// setBuildSandbox records whether a sandbox belongs to a running build.
func (t *buildRegistry) setBuildSandbox(id sandpit.ID, yes bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.sandboxes == nil {
		t.sandboxes = make(map[sandpit.ID]bool)
	}
	if t.sandboxes[id] = yes; !yes {
		delete(t.sandboxes, id)
	}
}

func (t *buildRegistry) isBuildSandbox(id sandpit.ID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sandboxes[id]
}

func (t *buildRegistry) countSpawned(id sandpit.TemplateID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.spawned == nil {
		t.spawned = make(map[sandpit.TemplateID]int64)
	}
	t.spawned[id]++
}
