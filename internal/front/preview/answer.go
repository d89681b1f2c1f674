package preview

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// lastWords is how long a response may take after the sandbox was taken away. The operation
// that ends the sandbox waits for it.
const lastWords = 2 * time.Second

// answer is an http.ResponseWriter that can be broken off, and counts.
type answer struct {
	http.ResponseWriter

	body   *body
	status int // 0: nothing yet
	bytes  int64
	// expired are lines of Set-Cookie that go with the answer, whatever it is.
	expired []string

	mu       sync.Mutex
	hijacked net.Conn
	cut      bool
}

// newAnswer begins with a request, whose body becomes one that can be broken off.
func newAnswer(w http.ResponseWriter, r *http.Request) *answer {
	c := http.NewResponseController(w)
	_ = c.SetWriteDeadline(time.Time{}) // deadlines are the connection's, and the last request may have left one
	a := &answer{ResponseWriter: w, body: &body{ReadCloser: r.Body, control: c}}
	if r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0 {
		a.body.ended.Store(true)
		return a
	}
	if r.ProtoMajor == 1 {
		// Without it the server reads a body to its end before it answers.
		a.body.keeps = c.EnableFullDuplex() == nil
	}
	r.Body = a.body
	return a
}

// Unwrap lets an http.ResponseController find the connection.
func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements http.ResponseWriter. Early hints are not passed on.
func (a *answer) WriteHeader(status int) {
	if status < 200 && status != http.StatusSwitchingProtocols || a.status != 0 {
		return
	}
	a.status = status
	for _, line := range a.expired {
		a.Header().Add("Set-Cookie", line)
	}
	if a.body.keeps && !a.body.ended.Load() {
		// What is left of the body must not be taken for the next request.
		a.Header().Set("Connection", "close")
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (a *answer) Write(b []byte) (int, error) {
	if a.status == 0 {
		a.WriteHeader(http.StatusOK)
	}
	n, err := a.ResponseWriter.Write(b)
	a.bytes += int64(n)
	return n, err
}

// Hijack implements http.Hijacker, and keeps the connection in order to close it.
func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, buffered, err := http.NewResponseController(a.ResponseWriter).Hijack()
	if err != nil {
		return nil, nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.status, a.hijacked = http.StatusSwitchingProtocols, conn
	if a.cut {
		_ = conn.Close() // it came too late
	}
	return conn, buffered, nil
}

// endSoon ends the response soon after ctx ends: otherwise a viewer that neither reads nor
// writes could keep a sandbox from ending. The caller calls the returned function when the
// response is complete.
func (a *answer) endSoon(ctx context.Context) (unhurried func()) {
	hurried := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(hurried)
		a.body.interruptReads()
		a.mu.Lock()
		defer a.mu.Unlock()
		a.cut = true
		if a.hijacked != nil {
			_ = a.hijacked.Close() // which ends both sides
			return
		}
		// A connection without deadlines cannot be interrupted.
		_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(lastWords))
	})
	return func() {
		if !stop() {
			<-hurried
		}
	}
}

// body is the body of a request. A read can be interrupted, because the HTTP server waits
// for it.
type body struct {
	io.ReadCloser

	control *http.ResponseController
	keeps   bool        // the connection would be used again though something is left
	ended   atomic.Bool // all of it was read, or it is broken
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) { // else it was interrupted, and there is a rest
		b.ended.Store(true)
	}
	return n, err
}

// Close implements io.Closer. The HTTP server closes the body itself.
func (b *body) Close() error {
	b.interruptReads()
	return nil
}

// drainBody reads what is left of a body when the answer was given before its end.
func (a *answer) drainBody() {
	b := a.body
	switch {
	case b.ended.Load():
	case b.keeps && a.status != 0 && a.status != http.StatusSwitchingProtocols:
		api.DrainBody(a.ResponseWriter, b)
	default:
		api.LimitRest(a.ResponseWriter)
	}
}

// interruptReads ends every Read, unless all was read: a deadline that comes between two
// requests would break the next one.
func (b *body) interruptReads() {
	if !b.ended.Load() {
		_ = b.control.SetReadDeadline(time.Now()) // only a connection of a test has none
	}
}
