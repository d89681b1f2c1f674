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

// How long a client may take to say which name it wants. Where the name only might
// be denied, a client may as well be waiting for the server to begin.
const (
	nameTimeout  = 10 * time.Second
	deniedPeriod = time.Second
	maxHello     = 64 << 10
)

// readName returns the name that a client calls its peer, "" if none, and what was
// read to find out.
func readName(ctx context.Context, box net.Conn, port uint16, check policy.Check) (name string, first io.Reader) {
	limit := nameTimeout
	if check != policy.CheckName {
		limit = deniedPeriod
	}
	_ = box.SetReadDeadline(time.Now().Add(limit)) // a failed one shows when reading
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

// nameInTLS returns the server name of a TLS client's greeting.
func nameInTLS(ctx context.Context, from io.Reader) string {
	var name string
	enough := errors.New("enough")
	server := tls.Server(onlyReader{from}, &tls.Config{ //nolint:gosec // nothing is spoken: only the greeting is read
		MinVersion: tls.VersionTLS10,
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			name = hello.ServerName
			return nil, enough
		},
	})
	_ = server.HandshakeContext(ctx) // always fails: at the latest with enough
	return normalName(name)
}

// nameInHTTP returns the host of a first request.
func nameInHTTP(from io.Reader) string {
	req, err := http.ReadRequest(bufio.NewReader(from))
	if err != nil || req.URL.Host != "" { // for a proxy: which of two names counts, servers disagree about
		return ""
	}
	host := req.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	return normalName(host)
}

// normalName returns "" for what is not a name.
func normalName(name string) string {
	name = policy.Normal(name)
	if _, err := netip.ParseAddr(strings.Trim(name, "[]")); err == nil {
		return ""
	}
	return name
}

// onlyReader is a connection whose other direction leads nowhere.
type onlyReader struct{ io.Reader }

func (onlyReader) Write(p []byte) (int, error)      { return len(p), nil }
func (onlyReader) Close() error                     { return nil }
func (onlyReader) LocalAddr() net.Addr              { return &net.TCPAddr{} }
func (onlyReader) RemoteAddr() net.Addr             { return &net.TCPAddr{} }
func (onlyReader) SetDeadline(time.Time) error      { return nil }
func (onlyReader) SetReadDeadline(time.Time) error  { return nil }
func (onlyReader) SetWriteDeadline(time.Time) error { return nil }
