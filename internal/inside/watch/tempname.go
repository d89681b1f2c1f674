package watch

import (
	"crypto/rand"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// The names of files that are about to replace others, or to become new ones.
const (
	newPrefix = ".sandpit-new-"
	oldPrefix = ".sandpit-old-"
)

// maxReplacing bounds the renames whose second half is still to come.
const maxReplacing = 1000

// TempName returns a name for a file that is written first and renamed then, so
// that whoever reads the other name sees all of it or nothing. What happens
// under this name is not told. The renaming is told as what it stands for: that
// the other file was written and, unless it existed, created and given to its owner
// before, which is what E2B's guest does and clients of E2B's count.
func TempName(existed bool) string {
	if existed {
		return oldPrefix + rand.Text()
	}
	return newPrefix + rand.Text()
}

func isTemp(name string) bool {
	return strings.HasPrefix(name, oldPrefix) || strings.HasPrefix(name, newPrefix)
}

// handleTemp deals with the events of such a file, and reports whether c is one.
func (t *tree) handleTemp(n *node, c change) bool {
	if c.hasAny(unix.IN_ISDIR) {
		return false
	}
	if isTemp(c.name) {
		if c.hasAny(unix.IN_MOVED_FROM) {
			if t.replacing == nil || len(t.replacing) >= maxReplacing { // most went elsewhere
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
