// Package watch reports changes in a directory, optionally with all directories below it, with inotify.
//
// Names are relative to the watched directory ("sub/file"). "." is the directory itself; its events are changes of
// permissions, owner or times. What enters a recursively watched tree is reported as created: a directory that is
// created or moved in, then its content at the time of the first scan, then what appears in it later, each file once.
// A directory that is renamed within the tree is reported as renamed and created, without its content, and is watched
// under its new name.
//
// Directories below an unreadable directory are not watched, and symbolic links are not followed. A watch ends when
// its directory is removed, moved or unmounted. When a directory above is renamed, a recursive watch ends as soon as
// it needs to open a directory below.
//
// In gVisor only changes made inside the sandbox are reported, not those that the machine makes in a shared
// directory. gVisor's kernel has no limits for watches and drops no events: only the bounds of this package apply.
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
	// maxDirectories is how many directories a watcher watches.
	maxDirectories = 10_000
	// maxDepth is how many levels below the watched directory are watched.
	maxDepth = 128
	// maxEvents is how many events can wait to be taken.
	maxEvents = 10_000
	// maxEventBytes bounds the names of waiting events, in bytes.
	maxEventBytes = 4 << 20
	// readSize is how many bytes of events are read at once.
	readSize = 32 << 10
)

// Event is one change.
type Event struct {
	// Name is the path relative to the watched directory, with invalid UTF-8 replaced by U+FFFD.
	Name string
	// Type is the kind of change.
	Type sandpit.FileEventType
}

// Watcher watches one directory. Its methods may be called concurrently; each event is returned to one caller.
type Watcher struct {
	file    *os.File // the inotify instance, owned and closed by run
	conn    syscall.RawConn
	queue   *queue
	closing atomic.Bool
	done    chan struct{} // closed when run has returned
	stop    sync.Once

	// mu is held from reading events until they are in the queue, so that a caller finds each event in one of the
	// two.
	mu   sync.Mutex
	tree *tree
	buf  []byte
	over error // reason for the end
}

// limits are the bounds of one watcher.
type limits struct {
	directories, depth, events int
}

// New starts to watch dir. With recursive it also watches all directories below, including future ones. Symbolic
// links in dir itself are resolved once. The caller must Close the watcher, even after Next has returned the end of
// the watch.
//
// NotFound: no such directory. Invalid: not a directory. PermissionDenied: it cannot be read. Exhausted: more than
// 10000 directories, more than 128 levels, or the machine allows no more watches.
func New(dir string, recursive bool) (*Watcher, error) {
	return startWatcher(dir, recursive, limits{directories: maxDirectories, depth: maxDepth, events: maxEvents})
}

func startWatcher(dir string, recursive bool, l limits) (*Watcher, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, watchError(dir, err)
	}
	// The file is nonblocking, so the runtime's poller waits for it.
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
// It returns ctx's error when ctx ends. Gone: the directory is gone and all earlier events have been returned, or the
// watcher is closed. Exhausted: more than 10000 events were waiting, or there are more directories than are watched;
// the watch continues, and the caller should read the directory itself.
func (w *Watcher) Next(ctx context.Context) (Event, error) { return w.queue.nextItem(ctx) }

// Take returns the events since the last call, in order, without waiting. All changes before the call are included.
// It returns the errors of Next, each alone and after the events before it.
func (w *Watcher) Take() ([]Event, error) {
	_ = w.conn.Control(func(uintptr) { w.catchUp() }) // fails only after the end, when all events are queued
	return w.queue.takeEvents()
}

// catchUp handles the events that the kernel has queued.
func (w *Watcher) catchUp() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for left := w.tree.queuedBytes(); left > 0; {
		n, err := w.handleRead()
		if err != nil {
			w.queue.endWith(err)
			_ = w.file.SetReadDeadline(time.Unix(1, 0)) // ends the read of runLoop, as in Close
		}
		if n == 0 {
			return
		}
		left -= int64(n)
	}
}

// Close ends the watch, drops waiting events, and returns when all resources are released. It is idempotent; its
// error is always nil.
func (w *Watcher) Close() error {
	w.stop.Do(func() {
		w.closing.Store(true)
		// This ends the read of runLoop, which owns the file and closes it. It fails only if runLoop has closed the
		// file already.
		_ = w.file.SetReadDeadline(time.Unix(1, 0))
	})
	<-w.done
	w.queue.dropAll()
	return nil
}

// runLoop handles events until the watch ends.
func (w *Watcher) runLoop() {
	defer close(w.done)
	err := w.followEvents()
	if w.closing.Load() {
		err = errClosed
	}
	w.queue.endWith(err)
	// Nothing was written to it, so an error of Close does not matter.
	_ = w.file.Close()
}

// followEvents handles events until the watch ends, and returns the reason.
func (w *Watcher) followEvents() error {
	var over error
	err := w.conn.Read(func(uintptr) bool {
		for {
			w.mu.Lock()
			n, err := w.handleRead()
			w.mu.Unlock()
			if over = err; n == 0 || err != nil {
				return err != nil // false waits for more
			}
		}
	})
	w.mu.Lock()
	defer w.mu.Unlock()
	return cmp.Or(over, w.over, err)
}

// handleRead reads and handles some events. It returns their size in bytes, and the reason for the end of the watch,
// if it has ended. The lock must be held.
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

// watchError gives an error of watching dir its code and a hint.
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
