package applet

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Dial is the applet that connects its streams to an address, as far as the sandbox's network rules allow. The
// argument after its name is a DialRequest. Its output begins with a line, a DialAnswer; the data of the other side
// follows.
const Dial = "dial"

// DialRequest says where to connect.
type DialRequest struct {
	// Address is HOST:PORT.
	Address string `json:"address"`
	// TLS encrypts the connection in the sandbox. It verifies the address's host with the image's certificates.
	TLS bool `json:"tls,omitempty"`
}

// DialAnswer reports whether the connection was opened.
type DialAnswer struct {
	Error *Failure `json:"error,omitempty"`
}

const dialTimeout = 30 * time.Second

func dialMain(ctx context.Context, args []string, in io.Reader, out io.Writer) int {
	conn, err := dialAddress(ctx, args)
	var answer DialAnswer
	if err != nil {
		answer.Error = &Failure{Code: sandpit.CodeOf(err), Message: err.Error()}
	}
	if err := errors.Join(json.NewEncoder(out).Encode(answer), err); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "dial:", err) // no other way to report it
		return 1
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	go func() { // ends with this process
		_, _ = io.Copy(conn, in) // the reading side reports a broken connection
		if half, ok := conn.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		}
	}()
	if _, err := io.Copy(out, conn); err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "dial:", err)
		return 1
	}
	return 0
}

func dialAddress(ctx context.Context, args []string) (net.Conn, error) {
	var r DialRequest
	if len(args) != 1 || json.Unmarshal([]byte(args[0]), &r) != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "dial: want one request as JSON")
	}
	host, _, err := net.SplitHostPort(r.Address)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "dial: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", r.Address)
	if err != nil {
		return nil, fetchError(err, dialTimeout.Seconds())
	}
	if !r.TLS {
		return conn, nil
	}
	secure := tls.Client(conn, &tls.Config{ServerName: host, MinVersion: tls.VersionTLS12})
	if err := secure.HandshakeContext(ctx); err != nil {
		_ = conn.Close()
		return nil, fetchError(err, dialTimeout.Seconds())
	}
	return secure, nil
}
