package data

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"
)

var errReturned = errors.New("the call has ended")

// lent is the body of a request while something else reads it, which may go on after
// it has answered. The HTTP server waits for whoever reads a body, and so would a
// client that sends nothing keep the call.
type lent struct {
	body    io.Reader
	control *http.ResponseController

	mu      sync.Mutex
	over    bool
	ended   bool          // all of it was read, or it is broken
	reading chan struct{} // closed when the Read that goes on has ended; nil if none does
}

// lend returns the body of a request.
func lend(w http.ResponseWriter, r *http.Request) *lent {
	return &lent{body: r.Body, control: http.NewResponseController(w), ended: r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0}
}

// Read implements io.Reader.
func (l *lent) Read(b []byte) (int, error) {
	l.mu.Lock()
	if l.over || l.ended && l.body == nil {
		l.mu.Unlock()
		return 0, errReturned
	}
	reading := make(chan struct{})
	l.reading = reading
	l.mu.Unlock()
	n, err := l.body.Read(b)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = l.ended || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) // else it was interrupted, and there is a rest
	l.reading = nil
	close(reading)
	return n, err
}

// Close implements io.Closer. The body itself is the HTTP server's to close.
func (l *lent) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	return nil
}

// wasRead reports whether nothing of it is left.
func (l *lent) wasRead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ended
}

// takeBack sees to it that the body is read no more.
func (l *lent) takeBack() {
	l.mu.Lock()
	l.over = true
	reading := l.reading
	l.mu.Unlock()
	if reading != nil && l.interrupt() == nil { // only a test's connection has no deadlines
		<-reading
	}
}

// interrupt ends every Read, the server's own included, unless all was read: a
// deadline that comes between two requests would break the next one.
func (l *lent) interrupt() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = true
	if l.ended {
		return nil
	}
	return l.control.SetReadDeadline(time.Now())
}
