package data

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

var errCallEnded = errors.New("the call has ended")

// requestBody is the body of a request while something else reads it, which may go on after
// it has answered. The HTTP server waits for whoever reads a body, and so would a
// client that sends nothing keep the call.
type requestBody struct {
	body    io.Reader
	control *http.ResponseController

	mu       sync.Mutex
	closed   bool
	complete bool          // all of it was read, or it is broken
	reading  chan struct{} // closed when the Read that goes on has ended; nil if none does
}

// newRequestBody returns the body of a request.
func newRequestBody(w http.ResponseWriter, r *http.Request) *requestBody {
	return &requestBody{body: r.Body, control: http.NewResponseController(w), complete: r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0}
}

// Read implements io.Reader.
func (l *requestBody) Read(b []byte) (int, error) {
	l.mu.Lock()
	if l.closed || l.complete && l.body == nil {
		l.mu.Unlock()
		return 0, errCallEnded
	}
	reading := make(chan struct{})
	l.reading = reading
	l.mu.Unlock()
	n, err := l.body.Read(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.complete = l.complete || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) // else it was interrupted, and there is a rest
	l.reading = nil
	close(reading)
	return n, err
}

// Close implements io.Closer. The body itself is the HTTP server's to close.
func (l *requestBody) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return nil
}

// wasRead reports whether nothing of it is left.
func (l *requestBody) wasRead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.complete
}

// endReads sees to it that the body is read no more.
func (l *requestBody) endReads() {
	l.mu.Lock()
	l.closed = true
	reading := l.reading
	l.mu.Unlock()
	if reading != nil && l.interruptRead() == nil { // only a test's connection has no deadlines
		<-reading
	}
}

// interruptRead ends every Read, the server's own included, unless all was read: a
// deadline that comes between two requests would break the next one.
func (l *requestBody) interruptRead() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.complete {
		return nil
	}
	return l.control.SetReadDeadline(time.Now())
}
