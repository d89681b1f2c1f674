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

// httpClient reaches one server by HTTP from inside a sandbox.
type httpClient struct {
	options Options
	origin  *url.URL
	headers map[string]string
	meter   *receiveBudget
	http    *http.Transport

	mu    sync.Mutex
	conns map[*dialedConn]bool
	ended bool
	wg    sync.WaitGroup
}

func newHTTPClient(o Options, s Server, m *receiveBudget) (*httpClient, error) {
	origin, err := url.Parse(s.URL)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	w := &httpClient{options: o, origin: origin, headers: s.Headers, meter: m, conns: map[*dialedConn]bool{}}
	dial := func(secure bool) func(context.Context, string, string) (net.Conn, error) {
		return func(ctx context.Context, _, address string) (net.Conn, error) {
			return w.dialInside(ctx, address, secure)
		}
	}
	w.http = &http.Transport{
		DialContext: dial(false), DialTLSContext: dial(true), MaxConnsPerHost: mostConns, MaxResponseHeaderBytes: maxHead,
		DisableCompression: true, // the meter counts what comes, and not what it becomes
	}
	return w, nil
}

// newClient has no limit of time: a stream lasts as long as the server is used.
func (w *httpClient) newClient() *http.Client {
	return &http.Client{Transport: w, CheckRedirect: func(*http.Request, []*http.Request) error {
		return sandpit.Errorf(sandpit.PermissionDenied, "the server sends its client elsewhere, which is not followed")
	}}
}

// RoundTrip asks the server, and nobody else: what it names as its address may be anybody's.
func (w *httpClient) RoundTrip(r *http.Request) (*http.Response, error) {
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
	answer.Body = w.meter.meterReader(answer.Body)
	return answer, nil
}

// dialInside starts a program in the sandbox that connects.
func (w *httpClient) dialInside(ctx context.Context, address string, secure bool) (net.Conn, error) {
	request, err := json.Marshal(applet.DialRequest{Address: address, TLS: secure})
	if err != nil {
		return nil, err
	}
	if err := w.beginDial(); err != nil {
		return nil, err
	}
	defer w.wg.Done()
	p, err := startProgram(ctx, w.options.Guest, sandpit.Command{
		Args: []string{sandpit.GuestProgram, applet.Dial, string(request)}, User: w.options.User, Dir: "/", Env: w.options.environment(),
	})
	if err != nil {
		return nil, err
	}
	c := &dialedConn{program: p, client: w, reader: bufio.NewReaderSize(p.output, maxHead)}
	if err := w.addConn(c); err != nil {
		p.stopProgram(ctx, 0)
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.Close() })
	defer stop()
	if err := c.awaitConnected(); err != nil {
		_ = c.Close() // there is nothing in it
		return nil, errors.Join(err, ctx.Err())
	}
	return c, nil
}

// beginDial has close wait for who dials, until it is told that they have.
func (w *httpClient) beginDial() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return net.ErrClosed
	}
	w.wg.Add(1)
	return nil
}

func (w *httpClient) addConn(c *dialedConn) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.ended {
		return net.ErrClosed
	}
	w.conns[c] = true
	return nil
}

// close breaks all connections and waits for their programs.
func (w *httpClient) close() {
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

// dialedConn is a connection that a program in the sandbox has made.
type dialedConn struct {
	program *program
	client  *httpClient
	reader  *bufio.Reader
	once    sync.Once
}

// awaitConnected reads how it went.
func (c *dialedConn) awaitConnected() error {
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
func (c *dialedConn) Read(b []byte) (int, error) { return c.reader.Read(b) }

// Write implements net.Conn.
func (c *dialedConn) Write(b []byte) (int, error) { return c.program.input.Write(b) }

// Close implements net.Conn. The program is ended beside.
func (c *dialedConn) Close() error {
	c.once.Do(func() {
		_, _ = c.program.input.Close(), c.program.output.Close() // never fail
		c.client.mu.Lock()
		defer c.client.mu.Unlock()
		delete(c.client.conns, c)
		c.client.wg.Go(func() { c.program.stopProgram(context.Background(), 0) })
	})
	return nil
}

// sandboxAddr is where a conn is as net.Conn wants it told.
type sandboxAddr struct{}

func (sandboxAddr) Network() string { return "sandbox" }
func (sandboxAddr) String() string  { return "sandbox" }

// LocalAddr implements net.Conn.
func (*dialedConn) LocalAddr() net.Addr { return sandboxAddr{} }

// RemoteAddr implements net.Conn.
func (*dialedConn) RemoteAddr() net.Addr { return sandboxAddr{} }

// SetDeadline implements net.Conn: there are none.
func (*dialedConn) SetDeadline(time.Time) error { return errors.ErrUnsupported }

// SetReadDeadline implements net.Conn: there are none.
func (*dialedConn) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

// SetWriteDeadline implements net.Conn: there are none.
func (*dialedConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }
