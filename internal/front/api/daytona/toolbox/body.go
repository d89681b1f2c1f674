package toolbox

import (
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// maxBody is the maximum number of bytes of a body that is not a stream.
const maxBody = 16 << 20

// readBody decodes the JSON body of a request, as api.ReadJSON does.
func (c *call) readBody(to any) error {
	_, err := api.ReadJSON(c.w, c.r, maxBody, to)
	return err
}

var errCallEnded = errors.New("the call has ended")

// requestBody is the body of a request whose pending read can be ended: otherwise a client
// that sends nothing would keep the sandbox in use.
type requestBody struct {
	body    io.Reader
	control *http.ResponseController

	mu       sync.Mutex
	closed   bool
	complete bool // it was read to its end or failed
}

// newRequestBody returns the body of a request.
func newRequestBody(w http.ResponseWriter, r *http.Request) *requestBody {
	return &requestBody{body: r.Body, control: http.NewResponseController(w), complete: r.Body == nil || r.Body == http.NoBody || r.ContentLength == 0}
}

// Read implements io.Reader.
func (b *requestBody) Read(p []byte) (int, error) {
	b.mu.Lock()
	closed, empty := b.closed, b.body == nil
	b.mu.Unlock()
	switch {
	case closed:
		return 0, errCallEnded
	case empty:
		return 0, io.EOF
	}
	n, err := b.body.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.complete = b.complete || err != nil && !errors.Is(err, os.ErrDeadlineExceeded) // otherwise it was interrupted
	return n, err
}

// wasRead reports whether the body was read to its end.
func (b *requestBody) wasRead() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.complete
}

// Close implements io.Closer. It does not close the underlying body, which belongs to the HTTP
// server.
func (b *requestBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return nil
}

// interruptRead ends a pending read, and refuses later ones. It does nothing if the body was
// read: a deadline between two requests would break the next one.
func (b *requestBody) interruptRead() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	if !b.complete {
		_ = b.control.SetReadDeadline(time.Now()) // only connections of tests have no deadlines
	}
}
