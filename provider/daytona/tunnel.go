package daytona

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/internal/reach/ownguest"
)

// guestPort is the port of the guest.
const guestPort = ownguest.DefaultPort

// forwarder sends requests to the guest through the toolbox, which forwards them. The toolbox keeps
// some headers for itself, so that only requests for a connection can go this way.
type forwarder struct{ b *sandbox }

// RoundTrip implements http.RoundTripper.
func (f forwarder) RoundTrip(r *http.Request) (*http.Response, error) {
	b := f.b
	if err := b.checkUsable(r.Context()); err != nil {
		closeBody(r)
		return nil, err
	}
	out, err := b.newRequest(r.Context(), toolCall{method: r.Method, path: proxyPath(guestPort, r.URL.EscapedPath()), query: r.URL.Query(), body: r.Body})
	if err != nil {
		closeBody(r)
		return nil, err
	}
	out.ContentLength = r.ContentLength
	for name, values := range r.Header {
		if name != "Authorization" {
			out.Header[name] = values
		}
	}
	res, err := b.p.toolbox.http.RoundTrip(out)
	if err != nil {
		return nil, b.explainFailure(r.Context(), err)
	}
	switch res.StatusCode {
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		_ = res.Body.Close() // was not read
		if err := b.checkFresh(r.Context()); err != nil {
			return nil, err
		}
		return nil, sandpit.Errorf(sandpit.Unavailable, "sandbox %s: %w", b.id, errNoGuest)
	case http.StatusBadRequest, http.StatusNotFound: // of the toolbox, if the sandbox does not run
		if err := b.checkFresh(r.Context()); err != nil {
			_ = res.Body.Close() // was not read
			return nil, err
		}
	}
	return res, nil
}

// errNoGuest is the error of a connection to a guest that does not run.
var errNoGuest = errors.New("its guest does not run")

func closeBody(r *http.Request) {
	if r.Body != nil {
		_ = r.Body.Close() // it was never read
	}
}

// tunnel sends requests to the guest over connections that the guest itself opens to its own port.
// So they arrive unchanged, whatever proxies are on the way.
type tunnel struct {
	b    *sandbox
	key  atomic.Pointer[string] // of the guest
	http *http.Transport
}

func newTunnel(b *sandbox) *tunnel {
	t := &tunnel{b: b}
	t.http = newPortTransport(func(ctx context.Context) (net.Conn, error) { return t.dial(ctx, guestPort) })
	return t
}

// newPortTransport returns a transport whose connections go to a port inside. Idle connections are
// closed soon: for the cloud, an open connection is a use of the sandbox.
func newPortTransport(dial func(context.Context) (net.Conn, error)) *http.Transport {
	return &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx) },
		MaxResponseHeaderBytes: 64 << 10, // the far end is untrusted
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        20 * time.Second,
		DisableCompression:     true,
	}
}

// dialTime bounds the opening of a connection.
const dialTime = 30 * time.Second

// dial opens a connection to a port inside. It starts a guest that does not run: another program may
// have started the sandbox, or ended its guest.
func (t *tunnel) dial(ctx context.Context, port int) (net.Conn, error) {
	conn, err := t.dialOnce(ctx, port)
	if !errors.Is(err, errNoGuest) || isStarting(ctx) {
		return conn, err
	}
	if restart := t.b.restartGuest(ctx); restart != nil {
		return nil, errors.Join(err, restart)
	}
	return t.dialOnce(ctx, port)
}

func (t *tunnel) dialOnce(ctx context.Context, port int) (net.Conn, error) {
	key := t.key.Load()
	if key == nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "sandbox %s: %w", t.b.id, errNoGuest)
	}
	limited, cancel := context.WithTimeout(ctx, dialTime)
	defer cancel()
	conn, err := ownguest.NewDialer(forwarder{t.b}, *key).Dial(limited, port)
	if err != nil && ctx.Err() == nil && limited.Err() != nil {
		err = sandpit.Errorf(sandpit.Unavailable, "no connection within %v", dialTime)
	}
	return conn, err
}

// RoundTrip implements http.RoundTripper. It learns the key of the guest from the requests of the
// client that knows it.
func (t *tunnel) RoundTrip(r *http.Request) (*http.Response, error) {
	if key := r.Header.Get(guest.TokenHeader); key != "" {
		t.key.Store(&key)
	}
	if r.URL.Path == guest.DialPath {
		return forwarder{t.b}.RoundTrip(r)
	}
	if err := t.b.checkUsable(r.Context()); err != nil {
		closeBody(r)
		return nil, err
	}
	res, err := t.http.RoundTrip(r)
	if err != nil {
		return nil, t.b.explainFailure(r.Context(), err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		res.Body = explainedBody{res.Body, t.b, r.Context()}
	}
	return res, nil
}

// explainedBody is a body whose errors say what has become of the sandbox.
type explainedBody struct {
	io.ReadCloser

	b   *sandbox
	ctx context.Context //nolint:containedctx // the request's
}

// Read implements io.Reader.
func (e explainedBody) Read(p []byte) (int, error) {
	n, err := e.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = e.b.explainFailure(e.ctx, err)
	}
	return n, err
}
