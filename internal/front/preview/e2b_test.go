package preview_test

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/preview"
)

// e2bRig is a server whose sandboxes were made by E2B's API, as their labels say.
func e2bRig(tb testing.TB) *rig {
	tb.Helper()
	r := newRig(tb)
	r.gateway.SetRules(func(s sandpit.Sandbox) preview.Rules {
		_, made := s.Spec.Labels["e2b"]
		https, _ := strconv.Atoi(s.Spec.Labels["https"]) // none is 0
		return preview.Rules{
			E2B: made, Private: s.Spec.Labels["e2b"] == "private", Wakes: s.Spec.Labels["e2b"] == "wakes",
			Host: s.Spec.Labels["host"], HTTPS: []int{https},
		}
	}, r.manager.Resume)
	return r
}

func (r *rig) e2bBox(kind string) sandpit.ID {
	r.Helper()
	return r.labelled(map[string]string{"e2b": kind})
}

func (r *rig) labelled(labels map[string]string) sandpit.ID {
	r.Helper()
	s, err := r.manager.Create(r.Context(), manager.CreateRequest{Owner: alice, Spec: sandpit.Spec{Labels: labels}})
	if err != nil {
		r.Fatal(err)
	}
	return s.ID
}

// named are the headers by which E2B's clients name a port.
func named(id sandpit.ID, port int, more ...string) []string {
	return append([]string{"E2b-Sandbox-Id", string(id), "E2b-Sandbox-Port", strconv.Itoa(port)}, more...)
}

// TestE2BGuest has the guest opened by its token and by what is signed with it, and by
// nothing else.
func TestE2BGuest(t *testing.T) {
	t.Parallel()
	r := e2bRig(t)
	c, at := r.client(false), "http://"+r.main
	id, other, plain := r.e2bBox("open"), r.e2bBox("open"), r.box()
	token := r.guestToken(id)
	if token != r.guestToken(id) || token == r.guestToken(other) || token == r.trafficToken(id) {
		t.Error("tokens are not of one sandbox and one purpose")
	}
	const refused = `{"code":401,"message":"unauthorized access, please provide a valid access token or method signing if supported"}`
	get(t, c, at+"/envs", named(id, preview.GuestPort, "X-Access-Token", token)...).want(t, http.StatusOK, "{")
	get(t, c, at+"/envs", named(id, preview.GuestPort, "X-Access-Token", token, "Authorization", "Basic dXNlcjo=")...).want(t, http.StatusOK, "{")
	get(t, c, r.hostURL(id, preview.GuestPort)+"/envs", "X-Access-Token", token).want(t, http.StatusOK, "{")
	get(t, c, at+"/envs", "X-Access-Token", token).want(t, http.StatusOK, "{") // of a client that leaves the sandbox out
	for _, wrong := range []string{"", "x", r.guestToken(other), r.trafficToken(id), forged(token)} {
		get(t, c, at+"/envs", named(id, preview.GuestPort, "X-Access-Token", wrong)...).want(t, http.StatusUnauthorized, refused)
	}
	for range 50 { // the name of a user inside is no wrong key of ours
		get(t, c, at+"/envs", named(id, preview.GuestPort, "Authorization", "Basic dXNlcjo=")...).want(t, http.StatusUnauthorized, refused)
	}
	get(t, c, at+"/health", named(id, preview.GuestPort)...).want(t, http.StatusNoContent, "")
	get(t, c, at+"/health", named(plain, preview.GuestPort)...).want(t, http.StatusUnauthorized, refused)
	req := request(t, http.MethodPost, at+"/init", strings.NewReader(`{"accessToken":"x"}`), named(id, preview.GuestPort, "X-Access-Token", token)...)
	send(t, c, req).want(t, http.StatusForbidden, `"code":403`)

	if err := r.manager.Delete(r.Context(), id); err != nil {
		t.Fatal(err)
	}
	for _, pairs := range [][]string{named(id, preview.GuestPort, "X-Access-Token", token), {"X-Access-Token", token}} {
		got := get(t, c, at+"/health", pairs...)
		var shown struct {
			Sandbox sandpit.ID `json:"sandboxId"`
			Code    int        `json:"code"`
			Message string     `json:"message"`
		}
		if err := json.Unmarshal([]byte(got.body), &shown); err != nil || got.status != http.StatusBadGateway || shown.Code != got.status ||
			shown.Sandbox != id || !strings.HasPrefix(shown.Message, "The sandbox was not found: ") {
			t.Errorf("%d: %s", got.status, got.body)
		}
	}
}

// signedURL is the path of a file that is signed with a token.
func signedURL(method, path, token, expires string) string {
	operation := map[string]string{http.MethodGet: "read", http.MethodPost: "write"}[method]
	text := strings.Join([]string{path, operation, "", token}, ":")
	query := url.Values{"path": {path}}
	if expires != "" {
		text += ":" + expires
		query.Set("signature_expiration", expires)
	}
	sum := sha256.Sum256([]byte(text))
	query.Set("signature", "v1_"+base64.RawStdEncoding.EncodeToString(sum[:]))
	return "/files?" + query.Encode()
}

// TestE2BSignature has URLs open the one file that they are for, at the API's own
// address as at the sandbox's.
func TestE2BSignature(t *testing.T) {
	t.Parallel()
	r := e2bRig(t)
	c, at := r.client(false), "http://"+r.main
	id := r.e2bBox("open")
	_ = r.e2bBox("open") // there are others
	token := r.guestToken(id)
	path := signedURL(http.MethodGet, "/none", token, "")
	for _, base := range []string{at, r.hostURL(id, preview.GuestPort)} {
		get(t, c, base+path).want(t, http.StatusNotFound, `"code":404`) // by the guest
		get(t, c, base+signedURL(http.MethodGet, "/none", token, "99999999999")).want(t, http.StatusNotFound, "")
		get(t, c, base+signedURL(http.MethodGet, "/none", token, "1000")).want(t, http.StatusUnauthorized, `{"code":401,"message":"signature is already expired"}`)
		get(t, c, base+signedURL(http.MethodGet, "/none", "x", "")).want(t, http.StatusUnauthorized, `{"code":401,"message":"invalid signature"}`)
		get(t, c, base+strings.Replace(path, "none", "other", 1)).want(t, http.StatusUnauthorized, "invalid signature")
		get(t, c, base+path+"&username=root").want(t, http.StatusUnauthorized, "invalid signature")
		send(t, c, request(t, http.MethodPost, base+path, strings.NewReader("x"))).want(t, http.StatusUnauthorized, "invalid signature")
	}
	get(t, c, at+path+"x", named(r.box(), preview.GuestPort)...).want(t, http.StatusUnauthorized, "")
}

// TestE2BPorts opens ports to every client or to those with the token, as the rules say.
func TestE2BPorts(t *testing.T) {
	t.Parallel()
	r := e2bRig(t)
	c, at, port := r.client(false), "http://"+r.main, app(t, echo)
	open, private := r.e2bBox("open"), r.e2bBox("private")
	traffic := r.trafficToken(private)
	get(t, c, r.hostURL(open, port)+"/x").want(t, http.StatusOK, "GET /x ")
	get(t, c, at+"/x", named(open, port)...).want(t, http.StatusOK, "GET /x ")
	get(t, c, at+"/x", named(private, port, "E2b-Traffic-Access-Token", traffic)...).want(t, http.StatusOK, "GET /x ")
	get(t, c, r.hostURL(private, port)+"/x", "E2b-Traffic-Access-Token", traffic).want(t, http.StatusOK, "GET /x ")
	for _, wrong := range []string{"x", r.trafficToken(open), r.guestToken(private)} {
		get(t, c, r.hostURL(private, port), "E2b-Traffic-Access-Token", wrong).want(t, http.StatusForbidden, `"code":403`)
	}
	get(t, c, r.hostURL(private, port)).want(t, http.StatusForbidden, `"code":403`)
	get(t, c, at, named(private, port)...).want(t, http.StatusForbidden, `"code":403`)
	get(t, c, r.hostURL(open, 9)).want(t, http.StatusBadGateway, `"message":"The sandbox is running but port is not open","port":9`)
	get(t, c, r.hostURL(open, preview.GuestPort)+"/envs", "E2b-Traffic-Access-Token", r.trafficToken(open)).want(t, http.StatusUnauthorized, "")

	if err := r.manager.Delete(r.Context(), open); err != nil {
		t.Fatal(err)
	}
	get(t, c, r.hostURL(open, port)).want(t, http.StatusBadGateway, `"code":502,"message":"The sandbox was not found","reason":"sandbox `+string(open))
}

// TestE2BHost has programs see the host that the sandbox's maker wants, and the guest
// the one that was written.
func TestE2BHost(t *testing.T) {
	t.Parallel()
	r := e2bRig(t)
	c, port := r.client(false), app(t, func(w http.ResponseWriter, r *http.Request) {
		_, _ = w.Write([]byte("host " + r.Host + r.Header.Get("X-Injected")))
	})
	id := r.labelled(map[string]string{"e2b": "open", "host": "app.example:${PORT}"})
	get(t, c, r.hostURL(id, port)).want(t, http.StatusOK, "host app.example:"+strconv.Itoa(port))
	get(t, c, "http://"+r.main, named(id, port)...).want(t, http.StatusOK, "host app.example:"+strconv.Itoa(port))
	get(t, c, r.hostURL(r.e2bBox("open"), port)).want(t, http.StatusOK, ".localhost")
	forged := r.labelled(map[string]string{"e2b": "open", "host": "a\r\nX-Injected: yes"}) // labels are their owner's
	if got := get(t, c, r.hostURL(forged, port)); got.body != "host " {
		t.Errorf("a malformed host: %q", got.body)
	}
}

// TestE2BHTTPS has a program speak TLS at a port that is named for it, and nowhere else.
func TestE2BHTTPS(t *testing.T) {
	t.Parallel()
	r := e2bRig(t)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = fmt.Fprintf(w, "encrypted %t %s", r.TLS != nil, r.Proto)
	}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	port, err := strconv.Atoi(portOf(server.Listener.Addr().String()))
	if err != nil {
		t.Fatal(err)
	}
	c, id := r.client(false), r.labelled(map[string]string{"e2b": "open", "https": strconv.Itoa(port)})
	get(t, c, r.hostURL(id, port)).want(t, http.StatusOK, "encrypted true HTTP/1.1")
	get(t, c, r.hostURL(id, app(t, echo))+"/x").want(t, http.StatusOK, "GET /x ")
	get(t, c, r.hostURL(r.e2bBox("open"), port)).want(t, http.StatusBadRequest, "HTTPS server") // as the program says

	plain := app(t, echo)
	id = r.labelled(map[string]string{"e2b": "open", "https": strconv.Itoa(plain)})
	get(t, c, r.hostURL(id, plain)).want(t, http.StatusBadGateway, "")
	id = r.labelled(map[string]string{"e2b": "open", "https": strconv.Itoa(closedPort)})
	get(t, c, r.hostURL(id, closedPort)).want(t, http.StatusBadGateway, "port is not open")
}

// TestE2BPages has browsers shown pages with the titles and the status that E2B's have,
// whether they say that they take pages or only what they are.
func TestE2BPages(t *testing.T) {
	t.Parallel()
	r := e2bRig(t)
	c, port := r.client(false), app(t, echo)
	open, private, plain := r.e2bBox("open"), r.e2bBox("private"), r.box()
	const chrome = "Mozilla/5.0 (X11; Linux x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/140.0.0.0 Safari/537.36"
	shown := func(id sandpit.ID, port, status int, title string) {
		t.Helper()
		for _, pairs := range [][]string{{"User-Agent", chrome}, {"Accept", "text/html"}} {
			got := get(t, c, r.hostURL(id, port), pairs...)
			got.want(t, status, "<title>"+title+"</title>")
			if h := got.header; h.Get("Content-Type") != "text/html; charset=utf-8" || !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") {
				t.Errorf("%v", h)
			}
		}
	}
	shown(open, closedPort, http.StatusBadGateway, "Closed Port Error")
	shown(private, port, http.StatusForbidden, "This preview is private")
	if got := get(t, c, r.hostURL(plain, port), "User-Agent", chrome).header.Get("Content-Type"); got != "application/problem+json" {
		t.Errorf("a request for no page gets %s", got)
	}
	if got := get(t, c, r.hostURL(open, preview.GuestPort)+"/envs", "User-Agent", chrome).header.Get("Content-Type"); got != "application/json" {
		t.Errorf("a request for the guest gets %s", got)
	}
	if err := r.manager.Delete(r.Context(), open); err != nil {
		t.Fatal(err)
	}
	shown(open, port, http.StatusBadGateway, "Sandbox Not Found")
}

// TestE2BWake has a request resume a paused sandbox that wants it, but none that only
// asks whether it runs.
func TestE2BWake(t *testing.T) {
	t.Parallel()
	r := e2bRig(t)
	c, at := r.client(false), "http://"+r.main
	for _, kind := range []string{"open", "wakes"} {
		id := r.e2bBox(kind)
		token := named(id, preview.GuestPort, "X-Access-Token", r.guestToken(id))
		if err := r.manager.Pause(context.WithoutCancel(r.Context()), id); err != nil {
			t.Fatal(err)
		}
		get(t, c, at+"/health", token...).want(t, http.StatusBadGateway, "paused")
		want := http.StatusBadGateway
		if kind == "wakes" {
			want = http.StatusOK
		}
		get(t, c, at+"/envs", token...).want(t, want, "")
	}
}
