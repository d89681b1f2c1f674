package shell

import (
	"context"
	"io"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// inputQueue is the input of a process: a bounded queue of bytes. A Read returns at
// the latest when the queue is closed.
type inputQueue struct {
	limit     int
	writeLock chan struct{} // held by the writer

	mu     sync.Mutex
	queue  []byte
	closed bool
	more   chan struct{} // buffer of one: signals data or the end
	room   chan struct{} // buffer of one: signals free space or the end
}

func newInputQueue(limit int) *inputQueue {
	return &inputQueue{
		limit: limit, writeLock: make(chan struct{}, 1),
		more: make(chan struct{}, 1), room: make(chan struct{}, 1),
	}
}

// Read implements io.Reader, for one reader.
func (f *inputQueue) Read(p []byte) (int, error) {
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

// queueInput queues all of p, waiting for room until ctx ends. Gone: the input is closed.
func (f *inputQueue) queueInput(ctx context.Context, p []byte) error {
	select {
	case f.writeLock <- struct{}{}:
		defer func() { <-f.writeLock }()
	case <-ctx.Done():
		return ctx.Err()
	}
	for {
		f.mu.Lock()
		if f.closed {
			f.mu.Unlock()
			return sandpit.Errorf(sandpit.Gone, "write input: the input is closed")
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

// closeInput ends the input after the queued bytes.
func (f *inputQueue) closeInput() { f.endInput(false) }

// abandonInput ends the input at once and drops the queued bytes.
func (f *inputQueue) abandonInput() { f.endInput(true) }

func (f *inputQueue) endInput(drop bool) {
	f.mu.Lock()
	f.closed = true
	if drop {
		f.queue = nil
	}
	f.mu.Unlock()
	notify(f.more)
	notify(f.room)
}

// notify signals c without blocking; a signal stays pending until it is received.
func notify(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
