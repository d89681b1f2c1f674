package mcpclient

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/applet"
)

const (
	// maxHead bounds the head of an HTTP answer, and the first line of a dialer, in bytes.
	maxHead = 64 << 10
	// mostConns is how many connections a server is given.
	mostConns = 8
)

// web reaches one server by HTTP from inside a sandbox.
type web struct {
	options Options
	origin  *url.URL
	headers map[string]string
	meter   *meter
	http    *http.Transport

	mu    sync.Mutex
	conns map[*conn]bool
	ended bool
	wg    sync.WaitGroup
}

func newWeb(o Options, s Server, m *meter) (*web, error) {
	origin, err := url.Parse(s.URL)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	w := &web{options: o, origin: origin, headers: s.Headers, meter: m, conns: map[*conn]bool{}}
	dial := func(secure bool) func(context.Context, string, string) (net.Conn, error) {
		return func(ctx context.Context, _, address string) (net.Conn, error) { return w.dial(ctx, address, secure) }
	}
	w.http = &http.Transport{
		DialContext: dial(false), DialTLSContext: dial(true), MaxConnsPerHost: mostConns, MaxResponseHeaderBytes: maxHead,
		DisableCompression: true, // the meter counts what comes, and not what it becomes
	}
	return w, nil
}

// client has no limit of time: a stream lasts as long as the server is used.
func (w *web) client() *http.Client {
	return &http.Client{Transport: w, CheckRedirect: func(*http.Request, []*http.Request) error {
		return sandpit.Errorf(sandpit.PermissionDenied, "the server sends its client elsewhere, which is not followed")
	}}
}

// RoundTrip asks the server, and nobody else: what it names as its address may be anybody's.
func (w *web) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != w.origin.Scheme || !strings.EqualFold(r.URL.Host, w.origin.Host) {
		return nil, sandpit.Errorf(sandpit.PermissionDenied, "the server has its client ask %s://%s, which is not where it is", r.URL.Scheme, r.URL.Host)
	}
	r = r.Clone(r.Context())
	for name, value := range w.headers {
		r.Header.Set(name, value)
	}
	answer, err := w.http.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	answer.Body = w.meter.of(answer.Body)
	return answer, nil
}

// dial starts a program in the sandbox that connects.
func (w *web) dial(ctx context.Context, address string, secure bool) (net.Conn, error) {
	request, err := json.Marshal(applet.DialRequest{Address: address, TLS: secure})
	if err != nil {
		return nil, err
	}
	if err := w.enter(); err != nil {
		return nil, err
	}
	defer w.wg.Done()
	p, err := start(ctx, w.options.Guest, sandpit.Command{
		Args: []string{sandpit.GuestProgram, applet.Dial, string(request)}, User: w.options.User, Dir: "/", Env: w.options.environment(),
	})
	if err != nil {
		return nil, err
	}
	c := &conn{program: p, web: w, reader: bufio.NewReaderSize(p.output, maxHead)}
	if err := w.add(c); err != nil {
		p.stop(ctx, 0)
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := c.connected(); err != nil {
		_ = c.Close() // there is nothing in it
		return nil, errors.Join(err, ctx.Err())
	}
	return c, nil
}

// enter has close wait for who dials, until it is told that they have.
func (w *web) enter() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return net.ErrClosed
	}
	w.wg.Add(1)
	return nil
}

func (w *web) add(c *conn) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return net.ErrClosed
	}
	w.conns[c] = true
	return nil
}

// close breaks all connections and waits for their programs.
func (w *web) close() {
	w.mu.Lock()
	w.ended = true
	conns := slices.Collect(maps.Keys(w.conns))
	w.mu.Unlock()
	for _, c := range conns {
		_ = c.Close() // never fails
	}
	w.http.CloseIdleConnections()
	w.wg.Wait()
}

// conn is a connection that a program in the sandbox has made.
type conn struct {
	program *program
	web     *web
	reader  *bufio.Reader
	once    sync.Once
}

// connected reads how it went.
func (c *conn) connected() error {
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return sandpit.Errorf(sandpit.Unavailable, "the sandbox does not connect: %w", err)
	}
	var answer applet.DialAnswer
	if err := json.Unmarshal(line, &answer); err != nil {
		return sandpit.Errorf(sandpit.Internal, "the sandbox's own program gives no answer: %w", err)
	}
	if answer.Error != nil {
		return sandpit.Errorf(answer.Error.Code, "%.1000s", answer.Error.Message)
	}
	return nil
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) { return c.reader.Read(b) }

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) { return c.program.input.Write(b) }

// Close implements net.Conn. The program is ended beside.
func (c *conn) Close() error {
	c.once.Do(func() {
		_, _ = c.program.input.Close(), c.program.output.Close() // never fail
		c.web.mu.Lock()
		defer c.web.mu.Unlock()
		delete(c.web.conns, c)
		c.web.wg.Go(func() { c.program.stop(context.Background(), 0) })
	})
	return nil
}

// address is where a conn is as net.Conn wants it told.
type address struct{}

func (address) Network() string { return "sandbox" }
func (address) String() string  { return "sandbox" }

// LocalAddr implements net.Conn.
func (*conn) LocalAddr() net.Addr { return address{} }

// RemoteAddr implements net.Conn.
func (*conn) RemoteAddr() net.Addr { return address{} }

// SetDeadline implements net.Conn: there are none.
func (*conn) SetDeadline(time.Time) error { return errors.ErrUnsupported }

// SetReadDeadline implements net.Conn: there are none.
func (*conn) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

// SetWriteDeadline implements net.Conn: there are none.
func (*conn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }
