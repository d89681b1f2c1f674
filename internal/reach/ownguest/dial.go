package ownguest

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
)

// Dialer opens connections to ports of the computer through the guest. It implements sandpit.Dialer.
type Dialer struct {
	http http.RoundTripper
	key  string
}

// NewDialer returns a Dialer for a guest that rt reaches and that has a key.
func NewDialer(rt http.RoundTripper, key string) Dialer { return Dialer{rt, key} }

// Dial implements sandpit.Dialer. The connection ends with the HTTP connection that carries it.
//
// Invalid: not a port. Unavailable: nothing listens. Errors of the round tripper are returned.
func (d Dialer) Dial(ctx context.Context, port int) (net.Conn, error) {
	if port < 1 || port > 65535 {
		return nil, sandpit.Errorf(sandpit.Invalid, "invalid port %d", port)
	}
	// The context bounds the dialing and not the connection. Its values belong to the request that
	// needs the connection: a trace of that would be called for this one.
	streamCtx, cancel := context.WithCancel(context.Background())
	unlink := context.AfterFunc(ctx, cancel)
	res, err := d.open(streamCtx, port)
	if !unlink() || err != nil {
		if err == nil {
			_ = res.Body.Close()
		}
		cancel()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		return nil, err
	}
	stream, ok := res.Body.(io.ReadWriteCloser)
	if res.StatusCode != http.StatusSwitchingProtocols || !ok {
		_ = res.Body.Close()
		cancel()
		return nil, sandpit.Errorf(dialCode(res.StatusCode), "connect to port %d: the guest answers HTTP %d", port, res.StatusCode)
	}
	return newStreamConn(stream, cancel, port), nil
}

// open sends the request for a connection.
func (d Dialer) open(ctx context.Context, port int) (*http.Response, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://guest"+guest.DialPath+"?port="+strconv.Itoa(port), http.NoBody)
	if err != nil {
		return nil, err
	}
	nonce := make([]byte, 16)
	_, _ = rand.Read(nonce) // never fails
	r.Header = http.Header{
		guest.TokenHeader: {d.key}, "Connection": {"Upgrade"}, "Upgrade": {"websocket"},
		"Sec-Websocket-Version": {"13"}, "Sec-Websocket-Key": {base64.StdEncoding.EncodeToString(nonce)},
	}
	return d.http.RoundTrip(r)
}

// dialCode returns the code of a status that is not 101.
func dialCode(status int) sandpit.Code {
	switch status {
	case http.StatusServiceUnavailable, http.StatusBadGateway:
		return sandpit.Unavailable
	case http.StatusUnauthorized:
		return sandpit.Unauthenticated
	}
	return sandpit.Internal
}

// streamConn is a net.Conn over the body of a response 101. A pipe gives it deadlines.
type streamConn struct {
	net.Conn

	stream io.ReadWriteCloser
	cancel context.CancelFunc
	port   int
}

// newStreamConn returns a connection over a stream. Two goroutines copy until the connection or the stream is closed.
func newStreamConn(stream io.ReadWriteCloser, cancel context.CancelFunc, port int) *streamConn {
	ours, theirs := net.Pipe()
	c := &streamConn{Conn: theirs, stream: stream, cancel: cancel, port: port}
	go func() {
		_, _ = io.Copy(ours, stream) // either side has ended
		_ = ours.Close()
	}()
	go func() {
		_, _ = io.Copy(stream, ours)
		_ = stream.Close()
		cancel()
	}()
	return c
}

// Close implements net.Conn.
func (c *streamConn) Close() error {
	err := c.Conn.Close()
	c.cancel()
	if closeErr := c.stream.Close(); closeErr != nil && !errors.Is(closeErr, net.ErrClosed) && !errors.Is(closeErr, os.ErrClosed) {
		err = errors.Join(err, closeErr)
	}
	return err
}

// RemoteAddr implements net.Conn.
func (c *streamConn) RemoteAddr() net.Addr { return address(c.port) }

// address is a port of the computer.
type address int

// Network implements net.Addr.
func (address) Network() string { return "tcp" }

// String implements net.Addr.
func (a address) String() string { return fmt.Sprintf("127.0.0.1:%d", int(a)) }

// Transport returns an HTTP transport whose connections go to a port of the computer through the guest.
func (d Dialer) Transport(port int) *http.Transport {
	return &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return d.Dial(ctx, port) },
		MaxResponseHeaderBytes: 64 << 10,
		MaxIdleConnsPerHost:    16,
		IdleConnTimeout:        time.Minute,
		DisableCompression:     true,
	}
}
