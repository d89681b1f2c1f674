package api

import (
	"net/http"
	"sync"
	"time"
)

const (
	// stallTimeout is how long a client may not take what is sent to it.
	stallTimeout = time.Minute
	// guardedPiece is how much has to be taken in that time, in bytes.
	guardedPiece = 64 << 10
)

// guardWrites returns next with answers that a client has to read: one that takes nothing
// for a while is cut off, so that what waits for it can be forgotten. An answer that is
// quiet because there is nothing to say is left alone.
func guardWrites(next http.Handler, stall time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := &guardedWriter{ResponseWriter: w, stall: stall}
		defer g.stopGuard()
		next.ServeHTTP(g, r)
	})
}

// guardedWriter is an http.ResponseWriter that does not wait for its client for ever.
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

// FlushError is what http.ResponseController calls.
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
	g.timer.Stop() // if it is too late for that, waiting says so
}

// abortWrite ends the write that is under way, and with it the answer.
func (g *guardedWriter) abortWrite() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.waiting {
		// A connection without deadlines ends by itself, or not at all.
		_ = http.NewResponseController(g.ResponseWriter).SetWriteDeadline(time.Unix(1, 0))
	}
}

// stopGuard ends the timer. Nothing is written any more.
func (g *guardedWriter) stopGuard() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.timer != nil {
		g.timer.Stop()
	}
}
