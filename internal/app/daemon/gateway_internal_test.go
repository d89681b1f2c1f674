package daemon

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// A server shows previews by host name and by path, and what was said of a port is
// known to the next one.
func TestServePreviews(t *testing.T) {
	t.Parallel()
	cfg := configured(t, "[preview]", "listen = '127.0.0.1:0'")
	world := newWorld(t)
	r := start(t, cfg, fakes(world))
	s := r.sandbox("POST", "/v1/sandboxes", `{"spec":{"ports":[{"port":1,"host_ip":"127.7.5.1"}]}}`, http.StatusCreated)
	at := s.Spec.Ports[0].Address()
	base := "/v1/sandboxes/" + string(s.ID) + "/ports"
	var u wire.PreviewURL
	link := func() {
		t.Helper()
		if err := json.Unmarshal([]byte(r.ask("POST", base+"/1/url", `{}`, http.StatusCreated)), &u); err != nil {
			t.Fatal(err)
		}
	}
	c := &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		_, port, _ := net.SplitHostPort(address)
		return new(net.Dialer).DialContext(ctx, network, net.JoinHostPort("127.0.0.1", port))
	}}}
	// No program listens at the port; only principals that may know hear that.
	check := func(status int) {
		t.Helper()
		link()
		for _, text := range []string{u.URL, u.PathURL} {
			where, err := url.Parse(text)
			if err != nil || text == "" {
				t.Fatalf("URL %q: %v, %+v", text, err, u)
			}
			r.askAt(c, text, "GET", "", http.StatusBadGateway)
			where.RawQuery = ""
			r.askAt(c, where.String(), "GET", "", status)
		}
	}
	check(http.StatusUnauthorized)
	if u.Token == "" || !strings.HasPrefix(u.PathURL, r.Previews+"/p/") {
		t.Errorf("%+v, previews at %s", u, r.Previews)
	}
	r.ask("PUT", base+"/1", `{"public":true}`, http.StatusNoContent)
	check(http.StatusBadGateway)
	for range 2 {
		if got := r.ask("GET", base, "", http.StatusOK); !strings.Contains(got, at) || !strings.Contains(got, `"public":true`) {
			t.Errorf("ports: %s", got)
		}
		if conn, err := new(net.Dialer).DialContext(t.Context(), "tcp", at); err != nil {
			t.Errorf("the published port: %v", err)
		} else {
			_ = conn.Close()
		}
		r.stop()
		r = start(t, cfg, fakes(world))
	}
	check(http.StatusBadGateway)
	r.ask("DELETE", base+"/1", "", http.StatusNoContent)
	check(http.StatusUnauthorized)
	r.ask("PUT", base+"/49983", `{"public":true}`, http.StatusForbidden)
	// Over TCP and without a key, the API is for its own name only.
	r.askAt(c, strings.Replace(r.URL, "127.0.0.1", "evil.example", 1)+"/v1/sandboxes", "GET", "", http.StatusForbidden)
	r.ask("DELETE", "/v1/sandboxes/"+string(s.ID), "", http.StatusNoContent)
	if got := r.sandbox("GET", "/v1/sandboxes/"+string(s.ID), "", http.StatusOK); got.State != sandpit.StateDeleted {
		t.Errorf("%+v", got)
	}
	if _, err := new(net.Dialer).DialContext(t.Context(), "tcp", at); err == nil {
		t.Error("the port of a deleted sandbox is open")
	}
}
