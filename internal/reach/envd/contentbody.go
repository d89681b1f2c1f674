package envd

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

const (
	// contentBuffer is the size of one read of the caller's content, in bytes.
	contentBuffer = 64 << 10
	// readGrace is how long a call waits for a pending Read after the end of its context.
	readGrace = 100 * time.Millisecond
)

var errReturned = errors.New("the call has ended")

// contentBody is a caller's reader while it is the body of a request. It protects the reader from
// the transport, which would keep reading after an early response of the guest, and would
// wait for a blocked reader beyond the end of the context.
type contentBody struct {
	*io.PipeReader // the transport reads and closes it

	content io.Reader
	unlink  func() bool
	ended   chan struct{} // closed when the copying has ended

	mu      sync.Mutex
	over    bool // the content must not be read any more
	reading bool
	all     bool
	err     error // the error of the content
}

// newContentBody starts to read content. The caller must call stopReading.
func newContentBody(ctx context.Context, content io.Reader) *contentBody {
	r, w := io.Pipe()
	l := &contentBody{
		PipeReader: r,
		content:    content,
		// The transport must read why the content ends. Its own context may end a moment later than ctx.
		unlink: context.AfterFunc(ctx, func() { _ = w.CloseWithError(ctx.Err()) }), // never fails
		ended:  make(chan struct{}),
	}
	go func() {
		defer close(l.ended)
		_ = w.CloseWithError(l.copyTo(w)) // never fails; nil is the end
	}()
	return l
}

// copyTo copies the content to w until either side ends.
func (l *contentBody) copyTo(w io.Writer) error {
	buf := make([]byte, contentBuffer)
	for {
		n, err := l.readContent(buf)
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

func (l *contentBody) readContent(buf []byte) (int, error) {
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

// stopReading ends the reading of the content. It reports whether all of it was read, and
// returns the error of the content. It waits for a pending Read until ctx ends, and then for
// patience.
func (l *contentBody) stopReading(ctx context.Context) (all bool, err error) {
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
			case <-time.After(readGrace):
			}
		}
	} else {
		<-l.ended
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all, l.err
}
