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

// requestBody is the body of a request that another goroutine may still read after the
// response. It can end such reads: otherwise the HTTP server would wait for them, and a client
// that sends nothing would keep the call open.
type requestBody struct {
	body    io.Reader
	control *http.ResponseController

	mu       sync.Mutex
	closed   bool
	complete bool          // it was read to its end or failed
	reading  chan struct{} // closed when the pending Read has ended; nil if none is pending
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
	l.complete = l.complete || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) // otherwise it was interrupted and can be continued
	l.reading = nil
	close(reading)
	return n, err
}

// Close implements io.Closer. It does not close the underlying body, which belongs to the HTTP
// server.
func (l *requestBody) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	return nil
}

// wasRead reports whether the body was read to its end.
func (l *requestBody) wasRead() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.complete
}

// endReads ends a pending read, and refuses later ones.
func (l *requestBody) endReads() {
	l.mu.Lock()
	l.closed = true
	reading := l.reading
	l.mu.Unlock()
	if reading != nil && l.interruptRead() == nil { // only connections of tests have no deadlines
		<-reading
	}
}

// interruptRead ends pending reads, also those of the HTTP server. It does nothing if the body
// was read: a deadline between two requests would break the next one.
func (l *requestBody) interruptRead() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.complete {
		return nil
	}
	return l.control.SetReadDeadline(time.Now())
}
