package toolbox

import (
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/front/api"
)

const (
	// writeTimeout is how long sending a response may take, or one part of a stream.
	writeTimeout = 60 * time.Second
	// finalTimeout is how long sending a response may take once the sandbox is stopping, which
	// waits for it.
	finalTimeout = 2 * time.Second
)

// response is an http.ResponseWriter that knows whether the response has begun.
type response struct {
	http.ResponseWriter

	body   *requestBody // of the request
	duplex bool         // the body may be read after the response has begun
	begun  bool

	mu     sync.Mutex
	ending bool // only a short time is left for sending
}

// Unwrap lets an http.ResponseController find the connection.
func (a *response) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements http.ResponseWriter.
func (a *response) WriteHeader(status int) {
	if a.duplex && !a.body.wasRead() {
		// The rest of the body must not be read as the next request.
		a.Header().Set("Connection", "close")
	}
	a.begun = true
	a.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer.
func (a *response) Write(b []byte) (int, error) {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	return a.ResponseWriter.Write(b)
}

// enableFullDuplex allows reading the body while the response is sent. HTTP/2 always allows it. The
// caller calls drainBody when the response is complete.
func (a *response) enableFullDuplex(r *http.Request) {
	a.duplex = r.ProtoMajor == 1 && http.NewResponseController(a.ResponseWriter).EnableFullDuplex() == nil
}

// drainBody reads the rest of the body if the response was complete before the body was read.
func (a *response) drainBody() {
	if a.duplex && a.begun && !a.body.wasRead() {
		api.DrainBody(a.ResponseWriter, a.body.body)
	}
}

// setWriteDeadline limits the time of the next writes, unless the call must end soon.
func (a *response) setWriteDeadline(d time.Duration) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.ending {
		setWriteDeadline(a.ResponseWriter, d)
	}
}

// setFinalDeadline limits the time of everything that is still to be sent.
func (a *response) setFinalDeadline() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ending = true
	setWriteDeadline(a.ResponseWriter, finalTimeout)
}

// sendPart sends one part of a response that is a stream.
func (a *response) sendPart(b []byte) error {
	a.setWriteDeadline(writeTimeout)
	if _, err := a.Write(b); err != nil {
		return err
	}
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// writeJSON responds with a value.
func (c *call) writeJSON(status int, value any) error {
	c.w.setWriteDeadline(writeTimeout)
	return api.WriteJSON(c.w, c.r, status, value)
}

// writeEmpty responds without a body.
func (c *call) writeEmpty(status int) error {
	c.w.WriteHeader(status)
	return nil
}
