package envd_test

import (
	"bytes"
	"io"
	"net/http"
	"strconv"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/envd"
)

// answering answers each request with the same stream, without a connection.
type answering []byte

// RoundTrip implements http.RoundTripper.
func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body) // a guest reads what it is sent
		_ = r.Body.Close()
	}
	return &http.Response{
		StatusCode: http.StatusOK, ProtoMajor: 1, ProtoMinor: 1, Request: r, Header: http.Header{"Content-Type": {"application/connect+proto"}},
		Body: io.NopCloser(bytes.NewReader(a)),
	}, nil
}

// BenchmarkObserve is how much it costs to observe a command, beside all that the client does
// for it anyway; the guest and its sandbox are left out.
func BenchmarkObserve(b *testing.B) {
	stream := []byte{
		0, 0, 0, 0, 6, 0x0a, 4, 0x0a, 2, 8, 42, // start: pid 42
		0, 0, 0, 0, 9, 0x0a, 7, 0x12, 5, 0x0a, 3, 'o', 'u', 't', // output
		0, 0, 0, 0, 6, 0x0a, 4, 0x1a, 2, 0x10, 1, // end: exited
		2, 0, 0, 0, 2, '{', '}',
	}
	for _, observed := range []bool{false, true} {
		b.Run(strconv.FormatBool(observed), func(b *testing.B) {
			c := envd.New(answering(stream), token)
			if observed {
				c.Observe(sandpit.GuestObserver{})
			}
			for b.Loop() {
				p, err := c.Start(b.Context(), sandpit.Command{Args: []string{"/bin/sh", "-c", "echo out"}})
				if err != nil {
					b.Fatal(err)
				}
				if _, err := p.Wait(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
