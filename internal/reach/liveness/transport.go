package liveness

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// keepAliveHeader asks for a sign of life on a stream that is silent so many seconds.
const keepAliveHeader = "Keepalive-Ping-Interval"

// kind says how a call takes its time.
type kind int

const (
	ordinary kind = iota // answered as a whole
	changing             // changes many files
	stream               // goes on until something ends
	download
	upload
	free // as long as a program inside likes
)

// Guest returns a transport that watches over calls of the guest itself. The header of a
// request must be the caller's own: it is changed here, and is sent as it is when there is a
// connection, since by then the guest may have another key.
func (m *Monitor) Guest(rt http.RoundTripper) http.RoundTripper { return transport{m, rt, kindOf} }

// Port returns a transport that watches over requests to programs inside, which take as long
// as they like while the guest, which passes their bytes on, is there.
func (m *Monitor) Port(rt http.RoundTripper) http.RoundTripper {
	return transport{m, rt, func(*http.Request) kind { return free }}
}

type transport struct {
	monitor *Monitor
	next    http.RoundTripper
	kindOf  func(*http.Request) kind
}

// CloseIdleConnections is for http.Client's method of that name.
func (t transport) CloseIdleConnections() {
	(&http.Client{Transport: t.next}).CloseIdleConnections()
}

// kindOf tells what kind of call of the guest's protocol a request is.
func kindOf(r *http.Request) kind {
	content := r.URL.Path == "/files" || r.URL.Path == "/tree"
	switch {
	case content && r.Method == http.MethodPost:
		return upload
	case content:
		return download
	case strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc"),
		strings.HasSuffix(r.URL.Path, "/StreamInput"), strings.HasSuffix(r.URL.Path, "/SendInput"):
		return free // a process takes its input when it likes
	case strings.HasPrefix(r.Header.Get("Content-Type"), "application/connect+"):
		return stream
	case strings.HasSuffix(r.URL.Path, "/Move"), strings.HasSuffix(r.URL.Path, "/Remove"), strings.HasPrefix(r.URL.Path, "/files/"):
		return changing
	}
	return ordinary
}

// RoundTrip implements http.RoundTripper.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if isExempt(r.Context()) {
		return t.next.RoundTrip(r)
	}
	ctx, cancel := context.WithCancelCause(r.Context())
	w := &watched{kind: t.kindOf(r), cancel: cancel}
	w.call = t.monitor.addCall(w.failCall)
	res, err := t.next.RoundTrip(w.prepareRequest(r.WithContext(ctx)))
	if err != nil {
		w.call.endWatch()
		if w.endReason() != nil {
			err = w.endReason()
		}
		cancel(err)
		return nil, err
	}
	t.monitor.recordSign()
	w.watchResponse(res)
	return res, nil
}

// watched is a call by HTTP.
type watched struct {
	kind   kind
	call   *call
	cancel context.CancelCauseFunc
	why    atomic.Pointer[error]
}

func (w *watched) failCall(err error) {
	w.why.Store(&err)
	w.cancel(err)
}

// endReason is why the call was ended, if so.
func (w *watched) endReason() error {
	if err := w.why.Load(); err != nil {
		return *err
	}
	return nil
}

// prepareRequest sets the limit for the answer to begin, and watches over the content.
func (w *watched) prepareRequest(r *http.Request) *http.Request {
	o := w.call.monitor.o
	switch w.kind {
	case free:
	case upload:
		if r.Body == nil || r.Body == http.NoBody {
			w.call.setLimit(o.Change)
			break
		}
		r.Body = &content{ReadCloser: r.Body, call: w.call}
	case changing:
		w.call.setLimit(o.Change)
	case stream:
		often := max(1, int(o.Stream/(3*time.Second)))
		if asked, err := strconv.Atoi(r.Header.Get(keepAliveHeader)); err != nil || asked > often {
			r.Header.Set(keepAliveHeader, strconv.Itoa(often)) // not in a copy: see Guest
		}
		w.call.setLimit(o.Call)
	case ordinary, download:
		w.call.setLimit(o.Call)
	}
	return r
}

// watchResponse watches over the rest of the answer.
func (w *watched) watchResponse(res *http.Response) {
	o := w.call.monitor.o
	b := &body{ReadCloser: res.Body, watched: w}
	switch w.kind {
	case stream:
		b.window, b.frames = o.Stream, new(Frames)
	case download:
		b.window, b.least = o.Pace, o.PaceBytes
	case ordinary, changing, upload:
		b.window, b.least = o.Call, math.MaxInt64 // the whole answer in that time
	case free:
	}
	w.call.removeLimit()
	res.Body = b
	both, ok := b.ReadCloser.(io.ReadWriteCloser)
	if !ok {
		return
	}
	res.Body = &upgraded{body: b, Writer: both}
	if half, ok := both.(closeWriter); ok {
		res.Body = &halfClosing{upgraded: upgraded{body: b, Writer: both}, closeWriter: half}
	}
}

// body is an answer that is being read.
type body struct {
	io.ReadCloser
	*watched

	// In a window of time that is spent waiting at least so many bytes come or, with frames,
	// a whole message. No window: any.
	window time.Duration
	least  int64
	frames *Frames

	mu     sync.Mutex // Reads come one at a time, as a rule
	waited time.Duration
	got    int64
}

// upgraded is the connection of an answer that changed the protocol.
type upgraded struct {
	*body
	io.Writer
}

type closeWriter interface{ CloseWrite() error }

// halfClosing is one of which one direction can be closed.
type halfClosing struct {
	upgraded
	closeWriter
}

// Read implements io.Reader.
func (b *body) Read(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	begin := time.Now()
	if b.window > 0 {
		b.call.limitFor(b.window-b.waited, b.window)
	}
	n, err := b.ReadCloser.Read(p)
	if b.window > 0 {
		b.call.removeLimit()
	}
	if n > 0 {
		b.call.monitor.recordSign()
	}
	b.waited += time.Since(begin)
	b.got += int64(n)
	if b.isEnough(p[:n]) || b.call.isExcused() {
		b.waited, b.got = 0, 0
	}
	if err == nil {
		return n, nil
	}
	b.call.endWatch()
	if why := b.endReason(); why != nil && !errors.Is(err, io.EOF) {
		err = why
	}
	return n, err
}

// isEnough reports whether, with what was just read, the guest has done what it has to do in
// a window.
func (b *body) isEnough(read []byte) bool {
	if b.frames != nil {
		return b.frames.Pass(read)
	}
	return b.got >= b.least
}

// Close implements io.Closer.
func (b *body) Close() error {
	b.call.endWatch()
	err := b.ReadCloser.Close()
	b.cancel(nil)
	return err
}

// content is what a request sends. The guest takes each piece of it in time, and answers
// in time when it has all.
type content struct {
	io.ReadCloser
	call *call
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	c.call.removeLimit() // now it is the caller who is waited for
	n, err := c.ReadCloser.Read(p)
	if err != nil {
		c.call.setLimit(c.call.monitor.o.Change)
	} else {
		c.call.setLimit(c.call.monitor.o.Call)
	}
	return n, err
}
