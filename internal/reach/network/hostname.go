package network

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/internal/reach/network/policy"
)

// How long a client may take to send a host name. Where the name is only checked against deny
// rules, the limit is short, because the client may wait for the server to send first.
const (
	nameTimeout  = 10 * time.Second
	deniedPeriod = time.Second
	maxHello     = 64 << 10
)

// readName returns the host name that a client sends, or "", and a reader that repeats the
// bytes read so far.
func readName(ctx context.Context, box net.Conn, port uint16, check policy.Check) (name string, first io.Reader) {
	limit := nameTimeout
	if check != policy.CheckName {
		limit = deniedPeriod
	}
	_ = box.SetReadDeadline(time.Now().Add(limit)) // an error occurs again when reading
	var read bytes.Buffer
	from := io.TeeReader(io.LimitReader(box, maxHello), &read)
	if port == 443 || check == policy.CheckHeaders {
		name = nameInTLS(ctx, from)
	} else {
		name = nameInHTTP(from)
	}
	_ = box.SetReadDeadline(time.Time{})
	return name, &read
}

// nameInTLS returns the server name in a TLS ClientHello.
func nameInTLS(ctx context.Context, from io.Reader) string {
	var name string
	enough := errors.New("enough")
	server := tls.Server(onlyReader{from}, &tls.Config{ //nolint:gosec // only parses the ClientHello
		MinVersion: tls.VersionTLS10,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name = hello.ServerName
			return nil, enough
		},
	})
	_ = server.HandshakeContext(ctx) // always fails, at the latest with enough
	return normalName(name)
}

// nameInHTTP returns the host of the first HTTP request.
func nameInHTTP(from io.Reader) string {
	req, err := http.ReadRequest(bufio.NewReader(from))
	if err != nil || req.URL.Host != "" { // a proxy request has two names, and servers disagree about which one counts
		return ""
	}
	host := req.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return normalName(host)
}

// normalName returns the Normal form of a name, or "" if it is not a name.
func normalName(name string) string {
	name = policy.Normal(name)
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return ""
	}
	return name
}

// onlyReader is a connection that discards what is written.
type onlyReader struct{ io.Reader }

func (onlyReader) Write(p []byte) (int, error)      { return len(p), nil }
func (onlyReader) Close() error                     { return nil }
func (onlyReader) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (onlyReader) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (onlyReader) SetDeadline(time.Time) error      { return nil }
func (onlyReader) SetReadDeadline(time.Time) error  { return nil }
func (onlyReader) SetWriteDeadline(time.Time) error { return nil }
