package watch

import (
	"errors"
	"time"

	"golang.org/x/sys/unix"

	sandpit "github.com/sandpit-dev/sandpit"
)

// tree maps watches to directories, and keeps the map correct while the directories change. It belongs to one
// goroutine.
//
// Events describe the past: when one is handled, its directory may have been renamed or replaced since. Four rules
// keep the tree correct.
//
// The directory at a name is determined by opening it: inotify returns the same watch for the same directory.
//
// A directory that has left its name stays in the tree, detached, until it is found under another name, or the kernel
// reports that it is gone (IN_IGNORED) or has moved (IN_MOVE_SELF, which comes after both halves of a rename). The
// events that report this may have been handled before the directory was detached. So a directory that was not found
// when all events that were waiting have been handled is not in the tree.
//
// A directory that came to a parent which has moved on is looked up again when the new path of the parent is known.
//
// The names that a scan has found are kept until the events that were waiting at its end have been handled, and a
// moment longer: those events may report the same files again.
type tree struct {
	inotify   int
	queue     *queue
	limits    limits
	stopped   func() bool // called between directories
	recursive bool

	path     string // path of the root, without symbolic links
	root     *node
	nodes    map[int32]*node   // by watch
	detached map[*node]barrier // detached directories, and the barriers by which they must be found
	moving   map[uint32]*node  // directories detached by the first half of a rename, by cookie
	// replacing maps the cookie of a rename from a temporary name to whether the replaced file existed.
	replacing map[uint32]bool
	epoch     int // number of scans from the root

	total       int64       // bytes of events that were read so far
	at          int64       // offset of the current event
	sweep       time.Time   // when to check for detached directories that were not found
	withBarrier []*node     // directories with found names, ordered by their barriers
	found       int         // number of their found names
	deferred    []change    // changes in and below detached directories
	missed      []missedDir // directories whose parent is elsewhere
	listed      int         // names of directories that were read and not yet opened

	full      bool  // the limit of directories was reported
	failed    error // the first error because of which a directory is not watched
	rootMoved bool  // the root is no longer at path
}

// node is a watched directory.
type node struct {
	wd       int32
	id       identity
	parent   *node // nil for the root, and while it is detached
	name     string
	children map[string]*node
	cookie   uint32 // its key in moving, or 0; set only while detached
	epoch    int

	found   map[string]struct{} // reported by a scan; events before barrier may report them again
	barrier barrier
}

// missedDir is a directory that could not be opened because its parent has moved.
type missedDir struct {
	in   *node
	name string
}

// identity identifies a directory.
type identity struct{ dev, ino uint64 }

func newTree(inotify int, q *queue, l limits) *tree {
	return &tree{inotify: inotify, queue: q, limits: l, nodes: map[int32]*node{}, detached: map[*node]barrier{}, moving: map[uint32]*node{}}
}

// top returns the topmost directory above n, or n itself.
func (n *node) top() *node {
	for n.parent != nil {
		n = n.parent
	}
	return n
}

// isWithin reports whether n is other or below it.
func (n *node) isWithin(other *node) bool {
	for ; n != nil; n = n.parent {
		if n == other {
			return true
		}
	}
	return false
}

// depthOf returns how many levels n is below its topmost directory.
func (n *node) depthOf() (d int) {
	for ; n.parent != nil; n = n.parent {
		d++
	}
	return d
}

// pathOf returns the path of name in n, relative to the topmost directory.
func (n *node) pathOf(name string) string {
	size := len(name)
	for m := n; m.parent != nil; m = m.parent {
		size += len(m.name) + 1
	}
	path := make([]byte, size)
	at := size - copy(path[size-len(name):], name)
	for m := n; m.parent != nil; m = m.parent {
		at--
		path[at] = '/'
		at -= len(m.name)
		copy(path[at:], m.name)
	}
	return string(path)
}

// handleData handles the events in data. It returns the reason for the end of the watch, if it has ended.
func (t *tree) handleData(data []byte) error {
	at := t.total
	t.total += int64(len(data))
	for len(data) > 0 {
		c, rest, err := parseChange(data)
		if err != nil {
			return sandpit.Errorf(sandpit.Internal, "read inotify events: %w", err)
		}
		c.at = at
		at += int64(len(data) - len(rest))
		data = rest
		if over := t.handleChange(c); over || t.stopped() {
			return errGone
		}
	}
	// Removals have events of their own, so everything before was reported.
	if t.rootMoved && t.queuedBytes() == 0 {
		return errGone
	}
	return nil
}

// handleChange updates the tree for one event and reports the event. It returns whether the watch has ended.
func (t *tree) handleChange(c change) (over bool) {
	t.at = max(t.at, c.at)
	if len(t.withBarrier)+len(t.detached) > 0 {
		t.passBarriers(time.Now())
	}
	if c.hasAny(unix.IN_Q_OVERFLOW) {
		t.recoverLost()
		return false
	}
	n := t.nodes[c.wd]
	switch {
	case n == nil: // a watch that was just removed
		return false
	case c.name == "":
		return t.handleSelf(n, c)
	}
	if n.top() != t.root {
		t.deferChange(c)
		return false
	}
	t.handleChild(n, c)
	return false
}

// handleSelf handles an event of a watched directory itself.
func (t *tree) handleSelf(n *node, c change) (over bool) {
	switch {
	case n == t.root:
		if c.hasAny(unix.IN_ATTRIB) {
			t.queue.pushEvent(Event{".", sandpit.FileChanged})
		}
		return c.hasAny(unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_UNMOUNT | unix.IN_IGNORED)
	case c.hasAny(unix.IN_IGNORED):
		t.forgetNode(n)
	case c.hasAny(unix.IN_MOVE_SELF) && n.cookie != 0: // the rename has no second half
		t.forgetNode(n)
	}
	return false // its parent reports the rest
}

// handleChild handles an event of an entry in a directory.
func (t *tree) handleChild(n *node, c change) {
	if t.handleTemp(n, c) {
		return
	}
	told := false
	if c.hasAny(unix.IN_CREATE | unix.IN_MOVED_TO | unix.IN_DELETE | unix.IN_MOVED_FROM) {
		told = t.wasFound(n, c)
	}
	for _, kind := range [...]struct {
		bits uint32
		kind sandpit.FileEventType
		skip bool
	}{
		{unix.IN_CREATE | unix.IN_MOVED_TO, sandpit.FileCreated, told},
		{unix.IN_MODIFY, sandpit.FileWritten, false},
		{unix.IN_ATTRIB, sandpit.FileChanged, false},
		{unix.IN_DELETE, sandpit.FileRemoved, false},
		{unix.IN_MOVED_FROM, sandpit.FileRenamed, false},
	} {
		if c.hasAny(kind.bits) && !kind.skip {
			t.queue.pushEvent(Event{n.pathOf(c.name), kind.kind})
		}
	}
	switch {
	case c.hasAny(unix.IN_DELETE | unix.IN_MOVED_FROM):
		t.handleLeave(n, c)
	case t.recursive && c.hasAny(unix.IN_ISDIR) && c.hasAny(unix.IN_CREATE|unix.IN_MOVED_TO):
		t.handleEnter(n, c)
	}
}

// handleLeave handles that a name in n no longer refers to the same directory.
func (t *tree) handleLeave(n *node, c change) {
	child := n.children[c.name]
	if child == nil {
		return
	}
	// It may be there again, or another one may have taken the name.
	there, err := t.isInPlace(child)
	if there {
		return
	}
	t.recordFailure(err)
	if errors.Is(err, errMoved) {
		t.recordMissed(n, c.name)
	}
	t.detachNode(child)
	if c.hasAny(unix.IN_MOVED_FROM) {
		child.cookie = c.cookie
		t.moving[c.cookie] = child
	}
}

// handleEnter handles that a directory has appeared under a name in n.
func (t *tree) handleEnter(n *node, c change) {
	moved := t.moving[c.cookie] // the renamed directory, if it was watched
	if moved != nil {
		delete(t.moving, c.cookie)
		moved.cookie = 0
	}
	d, err := t.openNode(n, c.name)
	if err != nil {
		if errors.Is(err, errMoved) {
			t.recordMissed(n, c.name)
		}
		t.recordFailure(err)
		if moved != nil {
			t.attachNode(moved, n, c.name) // it has moved again; a later event says where
		}
		return
	}
	t.addDir(d, n, c.name, true)
	d.closeFile()
}

// addDir watches d under name in parent. With report, it reports the content as created.
func (t *tree) addDir(d *directory, parent *node, name string, report bool) {
	wd, err := t.addWatch(d)
	if err != nil {
		t.recordFailure(err)
		return
	}
	if n := t.nodes[wd]; n != nil {
		t.addKnown(n, d, parent, name)
		return
	}
	if len(t.nodes) >= t.limits.directories || parent.depthOf() >= t.limits.depth {
		t.removeWatch(wd)
		t.recordFailure(errTooMany)
		return
	}
	n := &node{wd: wd, id: d.id, epoch: t.epoch}
	t.nodes[wd] = n
	t.attachNode(n, parent, name)
	t.scanDir(d, n, report)
}

// addKnown handles that a watched directory was found under name in parent.
func (t *tree) addKnown(n *node, d *directory, parent *node, name string) {
	fresh := n.epoch != t.epoch
	n.epoch = t.epoch
	switch {
	case n == t.root:
		return // mounted inside itself
	case n.parent == parent && n.name == name:
		t.retryMissed(n)
	case fresh || n.top() != t.root:
		t.attachNode(n, parent, name)
	default:
		if there, _ := t.isInPlace(n); there {
			return // mounted a second time: the first name stays
		}
		t.attachNode(n, parent, name)
	}
	if fresh {
		t.scanDir(d, n, false)
	}
}

// attachNode records n under name in parent, and detaches a directory that had the name.
func (t *tree) attachNode(n, parent *node, name string) {
	if parent.isWithin(n) {
		t.recordMissed(parent, name) // outdated; later events say how it moved
		return
	}
	t.detachNode(n)
	if old := parent.children[name]; old != nil {
		t.detachNode(old)
	}
	if parent.children == nil {
		parent.children = map[string]*node{}
	}
	parent.children[name] = n
	n.parent, n.name = parent, name
	delete(t.detached, n)
	t.replayDeferred()
	t.retryMissed(n)
}

// recordMissed records a name in n for a later lookup.
func (t *tree) recordMissed(n *node, name string) {
	if len(t.missed) >= t.limits.directories {
		t.recordFailure(errTooMany)
		return
	}
	t.missed = append(t.missed, missedDir{n, name})
}

// retryMissed looks up the recorded names in n and below, after n has been found.
func (t *tree) retryMissed(n *node) {
	missed := t.missed
	t.missed = nil
	for _, m := range missed {
		switch {
		case t.nodes[m.in.wd] != m.in: // it is gone
		case m.in.isWithin(n) && n.top() == t.root:
			t.handleEnter(m.in, change{name: m.name})
		default:
			t.missed = append(t.missed, m)
		}
	}
}

// detachNode removes n from its parent. Its watch and the directories below stay.
func (t *tree) detachNode(n *node) {
	if n.parent != nil {
		delete(n.parent.children, n.name)
		t.detached[n] = t.newBarrier()
		n.parent = nil
	}
	if n.cookie != 0 {
		delete(t.moving, n.cookie)
		n.cookie = 0
	}
}

// deferChange keeps a change in or below a detached directory until the directory's name is known.
func (t *tree) deferChange(c change) {
	if len(t.deferred) >= t.limits.events {
		t.replayDeferred() // some may belong to removed directories
	}
	if len(t.deferred) >= t.limits.events {
		t.recoverLost()
		return
	}
	t.deferred = append(t.deferred, c)
}

// replayDeferred handles the deferred changes whose directories have a known name.
func (t *tree) replayDeferred() {
	kept := t.deferred
	t.deferred = nil
	for _, c := range kept {
		n := t.nodes[c.wd]
		switch {
		case n == nil: // it is gone
		case n.top() == t.root:
			t.handleChild(n, c)
		default:
			t.deferred = append(t.deferred, c)
		}
	}
}

// recoverLost reports lost events and scans the tree again.
func (t *tree) recoverLost() {
	t.queue.pushError(errLost)
	for _, n := range t.withBarrier {
		t.clearFound(n)
	}
	t.withBarrier, t.deferred = nil, nil
	t.rescan()
}

// forgetNode removes n and all directories below with their watches.
func (t *tree) forgetNode(n *node) {
	t.detachNode(n)
	for _, child := range n.children {
		t.forgetNode(child)
	}
	t.removeWatch(n.wd)
	delete(t.nodes, n.wd)
	delete(t.detached, n)
	t.clearFound(n)
	if len(t.nodes) < t.limits.directories*9/10 {
		t.full = false
	}
}

var errTooMany = sandpit.Errorf(sandpit.Exhausted, "too many or too deeply nested directories: some are not watched")

// recordFailure handles the error of a directory that cannot be watched.
func (t *tree) recordFailure(err error) {
	switch {
	case err == nil:
		return
	case errors.Is(err, errRootMoved):
		t.rootMoved = true
		return
	case isGone(err), errors.Is(err, errMoved), errors.Is(err, unix.EACCES):
		return
	case errors.Is(err, errTooMany), errors.Is(err, unix.ENOSPC):
		if !t.full {
			t.queue.pushError(errTooMany)
		}
		t.full = true
	default: // a temporary lack of resources
		t.queue.pushError(errTooMany)
	}
	if t.failed == nil {
		t.failed = err
	}
}

// isGone reports whether err means that no directory has that name any more.
func isGone(err error) bool {
	return errors.Is(err, unix.ENOENT) || errors.Is(err, unix.ENOTDIR) || errors.Is(err, unix.ELOOP) ||
		errors.Is(err, unix.ESTALE)
}
