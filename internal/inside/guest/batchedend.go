package guest

import (
	"context"
	"net/http"
)

// batchedEnd is a response writer that sends the last pieces of a response together. A stream ends with an event, a
// trailer and the end of the body; each piece sent alone costs a system call here and one in every process that
// forwards it.
type batchedEnd struct {
	http.ResponseWriter
	atEnd bool // writes wait for the end of the response
}

// Flush implements http.Flusher.
func (e *batchedEnd) Flush() {
	if !e.atEnd {
		_ = http.NewResponseController(e.ResponseWriter).Flush() // the client may have disconnected
	}
}

// Unwrap lets an http.ResponseController find the connection.
func (e *batchedEnd) Unwrap() http.ResponseWriter { return e.ResponseWriter }

type batchedEndKey struct{}

// withBatchedEnd lets the handlers of next call endAnswer.
func withBatchedEnd(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		e := &batchedEnd{ResponseWriter: w}
		next.ServeHTTP(e, r.WithContext(context.WithValue(r.Context(), batchedEndKey{}, e)))
	})
}

// endAnswer delays what is still to be written to a call until the call returns, which must happen at once. Only the
// calling goroutine may write from now on.
func endAnswer(ctx context.Context) {
	if e, ok := ctx.Value(batchedEndKey{}).(*batchedEnd); ok {
		e.atEnd = true
	}
}
