// Package watch tells what happens in a directory, on request with all that is
// below it, by inotify.
//
// Names are relative to the watched directory ("sub/file"); "." is the directory
// itself, told when its permissions, owner or times change. What comes into a
// recursively watched tree is told as created: a directory made or moved in,
// then what was in it when the watcher came to look, then what appears in it
// later, each file once. A directory renamed inside the tree is told as renamed
// and created, without its contents, and goes on under its new name.
//
// What is below a directory that cannot be read is not watched, nor is what
// symbolic links lead to. A watch ends when its directory is removed, moved or
// unmounted. When a directory above it is renamed, a recursive one ends as soon
// as it would have to look at a directory below.
//
// In gVisor only what happens inside the sandbox is seen: changes that the
// machine makes to a directory it shares are not. Its kernel never runs out of
// watches, nor does it drop events: the bounds are those of this package.
package watch

import (
	"cmp"
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	sandpit "github.com/sandpit-dev/sandpit"
)

const (
	// maxDirectories is how many directories one watcher watches.
	maxDirectories = 10_000
	// maxDepth is how many levels below the watched directory are looked into.
	maxDepth = 128
	// maxEvents is how many events wait to be taken.
	maxEvents = 10_000
	// maxEventBytes is how much the names of those may need, for trees whose
	// names are as long as can be.
	maxEventBytes = 4 << 20
	// readSize is how many bytes of events are read at once.
	readSize = 32 << 10
)

// Event is one thing that happened.
type Event struct {
	// Name is the path relative to the watched directory, in valid UTF-8: bytes
	// that are none are replaced by U+FFFD.
	Name string
	// Type says what happened to it.
	Type sandpit.FileEventType
}

// Watcher watches one directory. Its methods may be called concurrently; each
// event goes to one caller.
type Watcher struct {
	file    *os.File // the inotify instance, owned and closed by run
	conn    syscall.RawConn
	queue   *queue
	closing atomic.Bool
	done    chan struct{} // closed when run has returned
	stop    sync.Once

	// mu is held from reading events until they are in the queue, so that nobody finds
	// events in neither.
	mu   sync.Mutex
	tree *tree
	buf  []byte
	over error // why there will be no more
}

// limits are the bounds of one watcher.
type limits struct {
	directories, depth, events int
}

// New starts to watch dir, and with recursive all directories below it, also
// those that come later. Symbolic links in dir itself are followed, once. The
// caller must Close the watcher, even after Next has told that it is over.
//
// NotFound: no such directory. Invalid: not a directory. PermissionDenied: it
// cannot be read. Exhausted: more than 10000 directories, more than 128 levels,
// or the machine allows no more watches.
func New(dir string, recursive bool) (*Watcher, error) {
	return startWatcher(dir, recursive, limits{directories: maxDirectories, depth: maxDepth, events: maxEvents})
}

func startWatcher(dir string, recursive bool, l limits) (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, watchError(dir, err)
	}
	// The file is not blocking, so the runtime's poller waits for it.
	file := os.NewFile(uintptr(fd), "inotify")
	conn, err := file.SyscallConn()
	if err == nil {
		err = file.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return nil, errors.Join(sandpit.Errorf(sandpit.Unsupported, "wait for inotify events: %w", err), file.Close())
	}
	w := &Watcher{file: file, conn: conn, queue: newQueue(l.events), done: make(chan struct{}), buf: make([]byte, readSize)}
	w.tree = newTree(fd, w.queue, l)
	w.tree.stopped = w.closing.Load
	if err := w.tree.watchRoot(dir, recursive); err != nil {
		return nil, errors.Join(watchError(dir, err), file.Close())
	}
	go w.runLoop()
	return w, nil
}

// Next waits for the next event and returns it.
//
// It returns ctx's error when ctx ends. Gone: the directory is no more, after
// all that happened before has been told, or the watcher is closed. Exhausted:
// more happened than is kept (10000 events), or more directories came than are
// watched; the watch goes on, and the caller had better look for itself.
func (w *Watcher) Next(ctx context.Context) (Event, error) { return w.queue.nextItem(ctx) }

// Take returns what has happened since the last call, in order, and does not
// wait: what had happened when it was called is among that. Its errors are those of
// Next, each told alone, after the events before it.
func (w *Watcher) Take() ([]Event, error) {
	_ = w.conn.Control(func(uintptr) { w.catchUp() }) // it fails only if run has ended, which has told all
	return w.queue.takeEvents()
}

// catchUp handles what the kernel has queued by now.
func (w *Watcher) catchUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for left := w.tree.queuedBytes(); left > 0; {
		n, err := w.handleRead()
		if err != nil {
			w.queue.endWith(err)
			_ = w.file.SetReadDeadline(time.Unix(1, 0)) // it wakes run, as in Close
		}
		if n == 0 {
			return
		}
		left -= int64(n)
	}
}

// Close ends the watch and returns once nothing of it is left. What was not
// taken is dropped. It is idempotent; its error is always nil.
func (w *Watcher) Close() error {
	w.stop.Do(func() {
		w.closing.Store(true)
		// It wakes run, which owns the file and closes it. It fails only if run has
		// closed it already.
		_ = w.file.SetReadDeadline(time.Unix(1, 0))
	})
	<-w.done
	w.queue.dropAll()
	return nil
}

// runLoop follows the events until the watch is over.
func (w *Watcher) runLoop() {
	defer close(w.done)
	err := w.followEvents()
	if w.closing.Load() {
		err = errClosed
	}
	w.queue.endWith(err)
	// Nothing was written to it, and it goes whatever Close returns.
	_ = w.file.Close()
}

// followEvents handles events until there is a reason to stop, which it returns.
func (w *Watcher) followEvents() error {
	var over error
	err := w.conn.Read(func(uintptr) bool {
		for {
			w.mu.Lock()
			n, err := w.handleRead()
			w.mu.Unlock()
			if over = err; n == 0 || err != nil {
				return err != nil // else it waits
			}
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(over, w.over, err)
}

// handleRead reads some events and handles them. It returns how many bytes they have, and why
// there will be no more. It is called with the lock held.
func (w *Watcher) handleRead() (n int, err error) {
	if w.over != nil {
		return 0, w.over
	}
	for again := true; again; again = errors.Is(err, unix.EINTR) {
		n, err = unix.Read(w.tree.inotify, w.buf)
	}
	switch {
	case errors.Is(err, unix.EAGAIN):
		return 0, nil
	case err != nil:
		w.over = sandpit.Errorf(sandpit.Internal, "read inotify events: %w", err)
		return 0, w.over
	}
	w.over = w.tree.handleData(w.buf[:n])
	return n, w.over
}

// watchError says what it means that dir cannot be watched.
func watchError(dir string, err error) error {
	code := sandpit.CodeOf(err)
	hint := ""
	switch {
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENAMETOOLONG):
		code = sandpit.Invalid
	case errors.Is(err, unix.ENOSPC):
		code, hint = sandpit.Exhausted, "raise the limit with: sysctl fs.inotify.max_user_watches=1048576"
	case errors.Is(err, unix.EMFILE):
		code, hint = sandpit.Exhausted, "raise the limit with: sysctl fs.inotify.max_user_instances=1024, or ulimit -n"
	case errors.Is(err, unix.ENFILE), errors.Is(err, unix.ENOMEM):
		code = sandpit.Exhausted
	}
	err = sandpit.Errorf(code, "watch %q: %w", dir, err)
	if hint == "" {
		return err
	}
	return sandpit.WithHint(err, hint)
}
