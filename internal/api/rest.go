package api

import (
	"io"
	"net/http"
	"time"
)

const (
	// restLimit is how long the rest of a body may take that nobody has asked for.
	restLimit = 5 * time.Second
	// restMost is how many bytes of it are read.
	restMost = 256 << 20
)

// BoundRest has what is left of a body come soon, or never: who reads it after the answer,
// if only the HTTP server itself, waits for 5 seconds.
func BoundRest(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(restLimit)) // what cannot have one needs none
}

// ReadRest reads what is left of the body of a request that was answered before its end, of
// 256 MiB for 5 seconds at most: to close a connection while something is on its way has the
// other side lose the answer. It is for a connection of HTTP/1.1 in full duplex, which is to
// be closed, and the answer must be complete.
func ReadRest(w http.ResponseWriter, body io.Reader) {
	BoundRest(w)
	if http.NewResponseController(w).Flush() == nil {
		_, _ = io.CopyN(io.Discard, body, restMost) // that it breaks is nobody's business any more
	}
}
