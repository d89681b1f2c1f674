package api

import (
	"net/http"
	"sync"
	"time"
)

const (
	// stallTimeout is how long a client may not read a pending response.
	stallTimeout = time.Minute
	// guardedPiece is how many bytes it must read in that time.
	guardedPiece = 64 << 10
)

// guardWrites returns next with responses that clients must read: a client that does not read
// for a while is disconnected, so that the response can be dropped. A response without pending
// output is not affected.
func guardWrites(next http.Handler, stall time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := &guardedWriter{ResponseWriter: w, stall: stall}
		defer g.stopGuard()
		next.ServeHTTP(g, r)
	})
}

// guardedWriter is an http.ResponseWriter with a time limit for its client.
type guardedWriter struct {
	http.ResponseWriter

	stall time.Duration

	mu      sync.Mutex
	timer   *time.Timer // nil: nothing was written yet
	waiting bool        // for the client
}

// Unwrap lets http.ResponseController find what the connection can do.
func (g *guardedWriter) Unwrap() http.ResponseWriter { return g.ResponseWriter }

// Write implements http.ResponseWriter.
func (g *guardedWriter) Write(p []byte) (written int, err error) {
	for {
		piece := p[:min(len(p), guardedPiece)]
		g.startTimer()
		n, err := g.ResponseWriter.Write(piece)
		g.stopTimer()
		written, p = written+n, p[n:]
		if err != nil || len(p) == 0 {
			return written, err
		}
	}
}

// FlushError implements the interface of http.ResponseController.
func (g *guardedWriter) FlushError() error {
	g.startTimer()
	defer g.stopTimer()
	return http.NewResponseController(g.ResponseWriter).Flush()
}

// Flush implements http.Flusher.
func (g *guardedWriter) Flush() { _ = g.FlushError() } // as http.Flusher, which cannot fail

func (g *guardedWriter) startTimer() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = true
	if g.timer == nil {
		g.timer = time.AfterFunc(g.stall, g.abortWrite)
		return
	}
	g.timer.Reset(g.stall)
}

func (g *guardedWriter) stopTimer() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = false
	g.timer.Stop() // if it has expired already, abortWrite checks waiting
}

// abortWrite ends the pending write, and with it the response.
func (g *guardedWriter) abortWrite() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting {
		// A connection without deadlines cannot be ended from here.
		_ = http.NewResponseController(g.ResponseWriter).SetWriteDeadline(time.Unix(1, 0))
	}
}

// stopGuard stops the timer after the last write.
func (g *guardedWriter) stopGuard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timer != nil {
		g.timer.Stop()
	}
}
