package envd

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

const (
	// lentBuffer is how much is read of a lent reader at once, in bytes.
	lentBuffer = 64 << 10
	// patience is how long a Read may outlast the context of its call before the
	// call returns without it.
	patience = 100 * time.Millisecond
)

var errReturned = errors.New("the call has ended")

// lent is a caller's reader while it is the body of a request. The transport
// does not get at it itself: it would go on reading after a guest has answered
// early, and would wait for a reader that has nothing, whatever the context
// says.
type lent struct {
	*io.PipeReader // what the transport reads and closes

	content io.Reader
	unlink  func() bool
	ended   chan struct{} // closed when the copying has ended

	mu      sync.Mutex
	over    bool // the content is the caller's again
	reading bool
	all     bool
	err     error // the content's own
}

// lendReader begins to read content. The caller must take it back.
func lendReader(ctx context.Context, content io.Reader) *lent {
	r, w := io.Pipe()
	l := &lent{
		PipeReader: r,
		content:    content,
		unlink:     context.AfterFunc(ctx, func() { _ = r.CloseWithError(ctx.Err()) }), // never fails
		ended:      make(chan struct{}),
	}
	go func() {
		defer close(l.ended)
		_ = w.CloseWithError(l.copyTo(w)) // never fails; nil is the end
	}()
	return l
}

// copyTo copies until either side ends.
func (l *lent) copyTo(w io.Writer) error {
	buf := make([]byte, lentBuffer)
	for {
		n, err := l.readLent(buf)
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func (l *lent) readLent(buf []byte) (int, error) {
	l.mu.Lock()
	over := l.over
	l.reading = !over
	l.mu.Unlock()
	if over {
		return 0, errReturned
	}
	n, err := l.content.Read(buf)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.reading = false
	if errors.Is(err, io.EOF) {
		l.all = true
	} else {
		l.err = err
	}
	return n, err
}

// takeBack sees to it that the content is read no more. It reports whether all
// of it was, and the content's own error. A Read that is going on is waited for
// until ctx ends, and then a little longer.
func (l *lent) takeBack(ctx context.Context) (all bool, err error) {
	l.unlink()
	_ = l.CloseWithError(errReturned) // never fails
	l.mu.Lock()
	l.over = true
	reading := l.reading
	l.mu.Unlock()
	if reading {
		select {
		case <-l.ended:
		case <-ctx.Done():
			select {
			case <-l.ended:
			case <-time.After(patience):
			}
		}
	} else {
		<-l.ended
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all, l.err
}
