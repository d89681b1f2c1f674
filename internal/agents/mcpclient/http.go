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
	// maxHead bounds the headers of an HTTP response, and the first line of a dialer, in bytes.
	maxHead = 64 << 10
	// mostConns limits the connections to a server.
	mostConns = 8
)

// httpClient sends HTTP requests to one server from inside a sandbox, or from this machine.
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
	dialPlain, dialTLS := dial(false), dial(true)
	if s.Host {
		dialPlain, dialTLS = (&net.Dialer{Timeout: connectTimeout}).DialContext, nil
	}
	w.http = &http.Transport{
		DialContext: dialPlain, DialTLSContext: dialTLS, MaxConnsPerHost: mostConns, MaxResponseHeaderBytes: maxHead,
		DisableCompression: true, // the budget counts received bytes
	}
	return w, nil
}

// newClient returns an http.Client without a timeout, because streams may last long.
func (w *httpClient) newClient() *http.Client {
	return &http.Client{Transport: w, CheckRedirect: func(*http.Request, []*http.Request) error {
		return sandpit.Errorf(sandpit.PermissionDenied, "the server redirects, which is not allowed")
	}}
}

// RoundTrip sends a request to the server. It rejects other hosts, which a hostile server may name.
func (w *httpClient) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != w.origin.Scheme || !strings.EqualFold(r.URL.Host, w.origin.Host) {
		return nil, sandpit.Errorf(sandpit.PermissionDenied, "the server names another host: %s://%s", r.URL.Scheme, r.URL.Host)
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

// dialInside starts a program in the sandbox that connects to an address.
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
		_ = c.Close() // nothing was sent
		return nil, errors.Join(err, ctx.Err())
	}
	return c, nil
}

// beginDial registers a dial, for which close waits until wg.Done.
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

// dialedConn is a connection that a program in the sandbox has opened.
type dialedConn struct {
	program *program
	client  *httpClient
	reader  *bufio.Reader
	once    sync.Once
}

// awaitConnected reads the result of the dial.
func (c *dialedConn) awaitConnected() error {
	line, err := c.reader.ReadSlice('\n')
	if err != nil {
		return sandpit.Errorf(sandpit.Unavailable, "connect from the sandbox: %w", err)
	}
	var answer applet.DialAnswer
	if err := json.Unmarshal(line, &answer); err != nil {
		return sandpit.Errorf(sandpit.Internal, "connect from the sandbox: invalid response of the dialer: %w", err)
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

// Close implements net.Conn. It ends the program in the background.
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

// sandboxAddr is the address of both ends of a dialedConn.
type sandboxAddr struct{}

func (sandboxAddr) Network() string { return "sandbox" }
func (sandboxAddr) String() string  { return "sandbox" }

// LocalAddr implements net.Conn.
func (*dialedConn) LocalAddr() net.Addr { return sandboxAddr{} }

// RemoteAddr implements net.Conn.
func (*dialedConn) RemoteAddr() net.Addr { return sandboxAddr{} }

// SetDeadline implements net.Conn: deadlines are not supported.
func (*dialedConn) SetDeadline(time.Time) error { return errors.ErrUnsupported }

// SetReadDeadline implements net.Conn: deadlines are not supported.
func (*dialedConn) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

// SetWriteDeadline implements net.Conn: deadlines are not supported.
func (*dialedConn) SetWriteDeadline(time.Time) error { return errors.ErrUnsupported }
