package envd

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestKeyWhileConnecting has the guest's key change while a request connects: the guest sees
// the new one, also of a request whose body cannot be sent again.
func TestKeyWhileConnecting(t *testing.T) {
	t.Parallel()
	shown := make(chan string, 1)
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { shown <- r.Header.Get(tokenHeader) }))
	defer server.Close()
	var c *Client
	c = New(&http.Transport{DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
		c.UseToken("new")
		return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
	}}, "old")
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, base+"/x", struct{ *strings.Reader }{strings.NewReader("body")})
	if err != nil {
		t.Fatal(err)
	}
	res, err := c.http.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if got := <-shown; got != "new" {
		t.Errorf("the guest is shown the key %q", got)
	}
}
