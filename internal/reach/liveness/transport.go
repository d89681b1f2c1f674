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

// keepAliveHeader requests a keepalive message after that many seconds without another
// message on a stream.
const keepAliveHeader = "Keepalive-Ping-Interval"

// kind is the kind of a call, which decides its time limits.
type kind int

const (
	ordinary kind = iota // has one response
	changing             // changes many files
	stream               // runs until the guest or the client ends it
	download
	upload
	free // no limit: depends on a program inside
)

// Guest returns a transport that watches calls to the guest itself. The caller must own the
// header of a request: the transport changes it, and the caller may change it until there is
// a connection, because the guest's key may change by then.
func (m *Monitor) Guest(rt http.RoundTripper) http.RoundTripper { return transport{m, rt, kindOf} }

// Port returns a transport that watches requests to programs inside. They may take any time
// while the guest, which forwards their bytes, answers.
func (m *Monitor) Port(rt http.RoundTripper) http.RoundTripper {
	return transport{m, rt, func(*http.Request) kind { return free }}
}

type transport struct {
	monitor *Monitor
	next    http.RoundTripper
	kindOf  func(*http.Request) kind
}

// CloseIdleConnections closes the idle connections of the inner transport. http.Client calls
// it.
func (t transport) CloseIdleConnections() {
	(&http.Client{Transport: t.next}).CloseIdleConnections()
}

// kindOf returns the kind of a request of the guest's protocol.
func kindOf(r *http.Request) kind {
	content := r.URL.Path == "/files" || r.URL.Path == "/tree"
	switch {
	case content && r.Method == http.MethodPost:
		return upload
	case content:
		return download
	case strings.HasPrefix(r.Header.Get("Content-Type"), "application/grpc"),
		strings.HasSuffix(r.URL.Path, "/StreamInput"), strings.HasSuffix(r.URL.Path, "/SendInput"):
		return free // a process may read its input at any time
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

// watched is a watched HTTP call.
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

// endReason returns why the call was ended, or nil.
func (w *watched) endReason() error {
	if err := w.why.Load(); err != nil {
		return *err
	}
	return nil
}

// prepareRequest sets the limit for the beginning of the response, and watches the content.
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

// watchResponse watches the body of the response.
func (w *watched) watchResponse(res *http.Response) {
	o := w.call.monitor.o
	b := &body{ReadCloser: res.Body, watched: w}
	switch w.kind {
	case stream:
		b.window, b.frames = o.Stream, new(Frames)
	case download:
		b.window, b.least = o.Pace, o.PaceBytes
	case ordinary, changing, upload:
		b.window, b.least = o.Call, math.MaxInt64 // the whole response in that time
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

// body is the body of a response while it is read.
type body struct {
	io.ReadCloser
	*watched

	// window is how long Reads may wait, in total, until at least least bytes or, with frames,
	// a whole message arrived. 0: no limit.
	window time.Duration
	least  int64
	frames *Frames

	mu     sync.Mutex // Reads are usually not concurrent
	waited time.Duration
	got    int64
}

// upgraded is the connection of a response that changed the protocol.
type upgraded struct {
	*body
	io.Writer
}

type closeWriter interface{ CloseWrite() error }

// halfClosing is an upgraded connection of which one direction can be closed.
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

// isEnough reports whether the bytes just read complete what the guest must send in a window.
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

// content is the body of a request. The guest must read each piece of it in time, and respond
// in time after the last one.
type content struct {
	io.ReadCloser
	call *call
}

// Read implements io.Reader.
func (c *content) Read(p []byte) (int, error) {
	c.call.removeLimit() // the wait for the caller does not count
	n, err := c.ReadCloser.Read(p)
	if err != nil {
		c.call.setLimit(c.call.monitor.o.Change)
	} else {
		c.call.setLimit(c.call.monitor.o.Call)
	}
	return n, err
}
