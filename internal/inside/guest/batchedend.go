package guest

import (
	"context"
	"net/http"
)

// batchedEnd is the writer of an answer whose last pieces leave together: a stream ends with
// an event, a trailer and the end of the body, and each that is sent by itself is a system
// call here and wakes everybody who passes it on.
type batchedEnd struct {
	http.ResponseWriter
	atEnd bool // what is written from now on waits for the end of the answer
}

// Flush implements http.Flusher.
func (e *batchedEnd) Flush() {
	if !e.atEnd {
		_ = http.NewResponseController(e.ResponseWriter).Flush() // who went away hears nothing
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

// endAnswer has what is still to be written of the answer to a call leave when the call
// returns, which it does at once. Nobody else writes any more.
func endAnswer(ctx context.Context) {
	if e, ok := ctx.Value(batchedEndKey{}).(*batchedEnd); ok {
		e.atEnd = true
	}
}
