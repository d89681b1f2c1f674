package watch

import (
	"crypto/rand"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// Prefixes of temporary files that are written first and then renamed, to a new file or over an old one.
const (
	newPrefix = ".sandpit-new-"
	oldPrefix = ".sandpit-old-"
)

// maxReplacing bounds the renames whose second event has not arrived.
const maxReplacing = 1000

// TempName returns a name for a file that is written first and then renamed, so that readers of the final name see
// all of its content or none. Events under this name are not reported. The rename is reported as what it means: the
// final file was written and, unless it existed, created and given to its owner before. E2B's guest reports these
// events, and E2B's clients count on them.
func TempName(existed bool) string {
	if existed {
		return oldPrefix + rand.Text()
	}
	return newPrefix + rand.Text()
}

func isTemp(name string) bool {
	return strings.HasPrefix(name, oldPrefix) || strings.HasPrefix(name, newPrefix)
}

// handleTemp handles an event of a temporary file, and reports whether c is one.
func (t *tree) handleTemp(n *node, c change) bool {
	if c.hasAny(unix.IN_ISDIR) {
		return false
	}
	if isTemp(c.name) {
		if c.hasAny(unix.IN_MOVED_FROM) {
			if t.replacing == nil || len(t.replacing) >= maxReplacing { // most were renamed to elsewhere
				t.replacing = make(map[uint32]bool)
			}
			t.replacing[c.cookie] = strings.HasPrefix(c.name, oldPrefix)
		}
		return true
	}
	existed, ok := t.replacing[c.cookie]
	if !ok || !c.hasAny(unix.IN_MOVED_TO) {
		return false
	}
	delete(t.replacing, c.cookie)
	if told := t.wasFound(n, c); !told && !existed {
		t.queue.pushEvent(Event{n.pathOf(c.name), sandpit.FileCreated})
	}
	if !existed {
		t.queue.pushEvent(Event{n.pathOf(c.name), sandpit.FileChanged})
	}
	t.queue.pushEvent(Event{n.pathOf(c.name), sandpit.FileWritten})
	return true
}
