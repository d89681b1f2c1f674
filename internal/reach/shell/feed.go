package shell

import (
	"context"
	"io"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// feed is the input of a process: a queue of bytes with a bound, which never keeps
// its reader longer than until it is ended.
type feed struct {
	limit int
	turn  chan struct{} // held by the one who writes

	mu     sync.Mutex
	queue  []byte
	closed bool
	more   chan struct{} // has room for one: something was written, or closed
	room   chan struct{} // has room for one: something was read, or closed
}

func newFeed(limit int) *feed {
	return &feed{
		limit: limit, turn: make(chan struct{}, 1),
		more: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
}

// Read implements io.Reader, for one reader.
func (f *feed) Read(p []byte) (int, error) {
	for {
		f.mu.Lock()
		n := copy(p, f.queue)
		f.queue = f.queue[n:]
		closed := f.closed
		f.mu.Unlock()
		if n > 0 {
			notify(f.room)
			return n, nil
		}
		if closed {
			return 0, io.EOF
		}
		<-f.more
	}
}

// queueInput queues all of p, waiting for room until ctx ends. Gone: it is closed.
func (f *feed) queueInput(ctx context.Context, p []byte) error {
	select {
	case f.turn <- struct{}{}:
		defer func() { <-f.turn }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			return sandpit.Errorf(sandpit.Gone, "write input: it is closed")
		}
		n := min(len(p), f.limit-len(f.queue))
		f.queue = append(f.queue, p[:n]...)
		p = p[n:]
		f.mu.Unlock()
		notify(f.more)
		if len(p) == 0 {
			return nil
		}
		select {
		case <-f.room:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// closeInput ends the input after what is queued.
func (f *feed) closeInput() { f.endInput(false) }

// abandonInput ends the input at once, since nobody wants it any more.
func (f *feed) abandonInput() { f.endInput(true) }

func (f *feed) endInput(drop bool) {
	f.mu.Lock()
	f.closed = true
	if drop {
		f.queue = nil
	}
	f.mu.Unlock()
	notify(f.more)
	notify(f.room)
}

// notify wakes the one who waits at c, now or later.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
