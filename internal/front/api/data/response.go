package data

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// response is an http.ResponseWriter that knows whether the response has begun.
type response struct {
	http.ResponseWriter

	server *Server
	body   *requestBody // of the request
	duplex bool         // the body may be read after the response has begun
	begun  bool

	mu     sync.Mutex
	ending bool // only a short time is left for sending
}

// setWriteDeadline limits the time of the next write, unless the call must end soon.
func (a *response) setWriteDeadline(d time.Duration) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.ending {
		return nil
	}
	return http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(d))
}

// setFinalDeadline limits the time of everything that is still to be sent.
func (a *response) setFinalDeadline() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ending = true
	// A connection without deadlines cannot be ended from here.
	_ = http.NewResponseController(a.ResponseWriter).SetWriteDeadline(time.Now().Add(finalTimeout))
}

// enableFullDuplex allows reading the body while the response is sent. HTTP/2 always allows
// it.
func (a *response) enableFullDuplex(r *http.Request) {
	a.duplex = r.ProtoMajor == 1 && http.NewResponseController(a.ResponseWriter).EnableFullDuplex() == nil
}

// drainBody reads the rest of the body if the response was complete before the body was read.
func (a *response) drainBody() {
	if a.duplex && a.begun && !a.body.wasRead() {
		api.DrainBody(a.ResponseWriter, a.body.body)
	}
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

// ReadFrom implements io.ReaderFrom with a pooled buffer. It sends each piece at once.
func (a *response) ReadFrom(r io.Reader) (sent int64, err error) {
	buffer, ok := a.server.buffers.Get().(*[copyBuffer]byte)
	if !ok {
		buffer = new([copyBuffer]byte)
	}
	defer a.server.buffers.Put(buffer)
	for {
		n, readErr := r.Read(buffer[:])
		if n > 0 {
			m, err := a.Write(buffer[:n])
			sent += int64(m)
			if err == nil {
				err = a.flushResponse()
			}
			if err != nil {
				return sent, err
			}
		}
		if errors.Is(readErr, io.EOF) {
			return sent, nil
		}
		if readErr != nil {
			return sent, readErr
		}
	}
}

// flushResponse sends what was written.
func (a *response) flushResponse() error {
	if !a.begun {
		a.WriteHeader(http.StatusOK)
	}
	return http.NewResponseController(a.ResponseWriter).Flush()
}

// setSafeHeaders keeps browsers from running or storing a response.
func setSafeHeaders(h http.Header) {
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
}

// writeJSON responds with a value.
func (c *call) writeJSON(status int, value any) error {
	setSafeHeaders(c.w.Header())
	return api.WriteJSON(c.w, c.r, status, value)
}

// writeNoContent responds without a body.
func (c *call) writeNoContent() error {
	c.w.WriteHeader(http.StatusNoContent)
	return nil
}

// maxBody is the maximum number of bytes of a body that is not a stream.
const maxBody = 16 << 20

// readBody decodes the JSON body of a request. Unknown fields are errors, because a misspelled
// field would silently change what is done.
func (c *call) readBody(value any) error {
	text, err := api.ReadBody(c.w, c.r, maxBody, api.BodyCost)
	if err != nil {
		return err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(value); err != nil {
		return sandpit.Errorf(sandpit.Invalid, "body: %w", err)
	}
	if decoder.InputOffset() < int64(len(bytes.TrimRight(text, " \t\r\n"))) {
		return sandpit.Errorf(sandpit.Invalid, "body: more than one JSON value")
	}
	return nil
}
