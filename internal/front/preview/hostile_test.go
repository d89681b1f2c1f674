package preview_test

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// TestCleanRequest checks that the sandbox sees neither its viewer's identity nor our headers.
func TestCleanRequest(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, echo)
	id := r.box()
	token, key := r.token(id, port), r.keys[alice]
	r.both(t, func(t *testing.T, c *http.Client) { //nolint:thelper // it is the test
		got := get(t, c, r.hostURL(id, port)+"/a%2Fb//c?x=%zz;y&sandpit_token="+token+"&z",
			"Sandpit-Preview-Token", token, "E2b-Traffic-Access-Token", token, "E2b-Sandbox-Id", "x", "E2b-Sandbox-Port", "1",
			"X-Api-Key", key, "Authorization", "Bearer "+key, "Forwarded", "for=1.2.3.4", "X-Forwarded-For", "1.2.3.4", "X-Forwarded-Host", "evil",
			"X-Forwarded-User", "root", "X-Real-Ip", "1.2.3.4", "Via", "1.1 x", "X_forwarded_for", "1.2.3.4", "Remote-User", "root",
			"Cookie", "a=1; sandpit_preview="+token, "Cookie", "SANDPIT_PREVIEW="+token+"; b=2",
			"Accept", "text/x", "X-Mine", "kept", "Origin", "http://"+r.host(id, port), "X-Secret", token, "Proxy-Connection", "x")
		got.want(t, http.StatusOK, "GET /a%2Fb//c?x=%zz;y&z "+r.host(id, port)+"\n")
		want := map[string]string{
			"Accept": "text/x", "Cookie": "a=1; b=2", "X-Mine": "kept", "Origin": "http://" + r.host(id, port),
			"X-Forwarded-Host": r.host(id, port), "X-Forwarded-Proto": "http", "User-Agent": "Go-http-client/1.1",
		}
		if strings.Contains(got.body, "http-client/2") {
			want["User-Agent"] = "Go-http-client/2.0"
		}
		for line := range strings.Lines(got.body) {
			name, _, ok := strings.Cut(line, ": ")
			if ok && strings.Join(got.seen(name), "; ") != want[name] { // HTTP/2 makes one cookie of two
				t.Errorf("%s: %q, want %q", name, got.seen(name), want[name])
			}
		}
		// What is meant for the program inside reaches it.
		got = get(t, c, r.hostURL(id, port), "Sandpit-Preview-Token", token, "Authorization", "Bearer app", "X-Api-Key", "app", "X-Access-Token", "app")
		for _, name := range []string{"Authorization", "X-Api-Key", "X-Access-Token"} {
			if list := got.seen(name); len(list) != 1 || !strings.HasSuffix(list[0], "app") {
				t.Errorf("%s: %q", name, list)
			}
		}
	})
}

// TestCleanAnswer has a sandbox say nothing about other origins, and its links and
// cookies lead back to it.
func TestCleanAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var port int
	port = app(t, func(w http.ResponseWriter, req *http.Request) {
		h := w.Header()
		for _, name := range []string{"Alt-Svc", "Clear-Site-Data", "Strict-Transport-Security", "Service-Worker-Allowed", "Report-To", "X-Accel-Redirect"} {
			h.Set(name, "x")
		}
		h.Set("X-Mine", "kept")
		h.Add("Set-Cookie", "a=1; Domain=localhost; Path=/sub; HttpOnly")
		h.Add("Set-Cookie", "b=2;domain=.localhost;Secure")
		h.Add("Set-Cookie", "sandpit_preview=stolen; Path=/")
		h.Add("Set-Cookie", " __host-SANDPIT_preview =stolen")
		h.Add("Set-Cookie", "c=3; path=relative")
		h.Set("Location", strings.ReplaceAll(strings.ReplaceAll(req.URL.Query().Get("to"), "PORT", strconv.Itoa(port)), "HOST", req.Host))
		w.WriteHeader(http.StatusFound)
	})
	id := r.box()
	r.public(id, port)
	c := r.client(false)
	prefix := fmt.Sprintf("/p/%s/%d", id, port)
	for _, tc := range []struct{ to, byHost, byPath string }{
		{"/x/y?z=1#f", "/x/y?z=1#f", prefix + "/x/y?z=1#f"},
		{"x/y", "x/y", prefix + "/x/y"},
		{"?a", "?a", prefix + "/?a"},
		{"http://HOST/x", "/x", prefix + "/x"},
		{"http://localhost:PORT/x", "/x", prefix + "/x"},
		{"http://127.0.0.1:PORT", "/", prefix + "/"},
		{"http://localhost:1/x", "http://localhost:1/x", "http://localhost:1/x"},
		{"https://example.org/x", "https://example.org/x", "https://example.org/x"},
		{"http://HOST//evil.example/x", "/evil.example/x", prefix + "/evil.example/x"},
		{"mailto:a@b", "mailto:a@b", "mailto:a@b"},
		{prefix + "/z", prefix + "/z", prefix + "/z"}, // it knows its prefix
	} {
		for _, side := range []struct{ base, want string }{{r.hostURL(id, port), tc.byHost}, {r.pathURL(id, port), tc.byPath}} {
			if got := get(t, c, side.base+"/?to="+url.QueryEscape(tc.to)).header.Get("Location"); got != side.want {
				t.Errorf("%s at %s leads to %q, want %q", tc.to, side.base, got, side.want)
			}
		}
	}
	for base, want := range map[string][]string{
		r.hostURL(id, port): {"a=1; Path=/sub; HttpOnly", "b=2;Secure", "c=3; Path=/"},
		r.pathURL(id, port): {"a=1; Path=" + prefix + "/sub; HttpOnly", "b=2;Secure", "c=3; Path=" + prefix + "/"},
	} {
		h := get(t, c, base+"/").header
		if got := h.Values("Set-Cookie"); !slices.Equal(got, want) {
			t.Errorf("%s sets %q, want %q", base, got, want)
		}
		for _, name := range []string{"Alt-Svc", "Clear-Site-Data", "Strict-Transport-Security", "Report-To", "X-Accel-Redirect"} {
			if h.Get(name) != "" {
				t.Errorf("%s: %s is shown", base, name)
			}
		}
		if workers := h.Get("Service-Worker-Allowed"); (workers == "") != strings.Contains(base, "/p/") {
			t.Errorf("%s: a service worker for %q", base, workers)
		}
		if h.Get("X-Mine") != "kept" {
			t.Errorf("%s: %v", base, h)
		}
	}
}

// TestPaths has pages by path find what they ask for.
func TestPaths(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, echo)
	id := r.box()
	r.public(id, port)
	c := r.client(false)
	prefix := fmt.Sprintf("/p/%s/%d", id, port)
	get(t, c, r.pathURL(id, port)+"/a%2Fb//c?d", "X-Forwarded-Prefix", "/evil").want(t, http.StatusOK, "GET /a%2Fb//c?d "+r.paths+"\n")
	if got := get(t, c, r.pathURL(id, port)+"/").seen("X-Forwarded-Prefix"); !slices.Equal(got, []string{prefix}) {
		t.Errorf("prefix: %q", got)
	}
	for target, want := range map[string]string{"?a=b": prefix + "/?a=b", "": prefix + "/"} {
		if got := get(t, c, r.pathURL(id, port)+target); got.status != http.StatusPermanentRedirect || got.header.Get("Location") != want {
			t.Errorf("%q: %d to %q, want %q", target, got.status, got.header.Get("Location"), want)
		}
	}
	// A link that a page has written as if it had a host of its own.
	base := "http://" + r.paths
	got := get(t, c, base+"/app.js?v=1", "Referer", r.pathURL(id, port)+"/index.html")
	if got.status != http.StatusTemporaryRedirect || got.header.Get("Location") != prefix+"/app.js?v=1" {
		t.Errorf("%d to %q", got.status, got.header.Get("Location"))
	}
	for name, pairs := range map[string][]string{
		"no referer": {}, "another's": {"Referer", "http://evil.example" + prefix + "/"}, "none of ours": {"Referer", base + "/x"},
	} {
		if got := get(t, c, base+"/app.js", pairs...); got.status != http.StatusNotFound {
			t.Errorf("%s: %d", name, got.status)
		}
	}
	// Nothing of the API is here.
	for _, path := range []string{"/v1/sandboxes", "/healthz", "/p/", "/p/x/80/", "/p/" + string(id) + "/0/", "/p/" + string(id) + "/99999/", "/p/" + string(id) + "/080/"} {
		get(t, c, base+path, "X-Api-Key", r.keys[alice], "E2b-Sandbox-Id", string(id), "E2b-Sandbox-Port", "80").want(t, http.StatusNotFound, "")
	}
	// The prefix written in another way.
	conn := raw(t, r.paths, fmt.Sprintf("GET /%%70/%s/%d/a%%2Fb HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", id, port))
	if !strings.HasPrefix(conn, "HTTP/1.1 400 ") {
		t.Errorf("%s", conn)
	}
}

// TestForgedHost has names that only look like those of a port taken for none.
func TestForgedHost(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, echo)
	id := r.box()
	r.public(id, port)
	name := fmt.Sprintf("%d-%s", port, id)
	for host, status := range map[string]int{
		name + ".localhost":                            http.StatusOK,
		name + ".localhost.":                           http.StatusOK,
		strings.ToUpper(name) + ".LocalHost:1":         http.StatusOK,
		name + ".localhost.evil.example":               http.StatusForbidden,
		name + ".evil.example":                         http.StatusForbidden,
		name + "localhost":                             http.StatusForbidden,
		"x." + name + ".localhost":                     http.StatusForbidden,
		name + ".x.localhost":                          http.StatusForbidden,
		"0" + name + ".localhost":                      http.StatusForbidden,
		fmt.Sprintf("99999-%s.localhost", id):          http.StatusForbidden,
		fmt.Sprintf("%d_%s.localhost", port, id):       http.StatusForbidden,
		fmt.Sprintf("%d-%s0.localhost", port, id):      http.StatusForbidden,
		fmt.Sprintf("%d--%s.localhost", port, id):      http.StatusForbidden,
		"evil.example":                                 http.StatusForbidden,
		"localhost":                                    http.StatusUnauthorized, // the API
		"evil.example\r\nHost: " + name + ".localhost": http.StatusBadRequest,
		name + ".localhost, localhost":                 http.StatusBadRequest,
	} {
		got := raw(t, r.main, "GET /v1/sandboxes HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n")
		if !strings.HasPrefix(got, fmt.Sprintf("HTTP/1.1 %d ", status)) {
			t.Errorf("host %q: want %d:\n%.300s", host, status, got)
		}
	}
	// The name in the request line is the one that counts.
	got := raw(t, r.main, "GET http://localhost/v1/sandboxes HTTP/1.1\r\nHost: "+name+".localhost\r\nConnection: close\r\n\r\n")
	if !strings.HasPrefix(got, "HTTP/1.1 401 ") {
		t.Errorf("absolute:\n%.300s", got)
	}
	for _, method := range []string{"TRACE", "CONNECT"} {
		got := raw(t, r.main, method+" / HTTP/1.1\r\nHost: "+name+".localhost\r\nConnection: close\r\n\r\n")
		if !strings.HasPrefix(got, "HTTP/1.1 405 ") && !strings.HasPrefix(got, "HTTP/1.1 400 ") {
			t.Errorf("%s:\n%.300s", method, got)
		}
	}
}

// TestSmuggling has requests that two servers could read in two ways reach the sandbox
// as one, or not at all.
func TestSmuggling(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	var mu sync.Mutex
	var got []string
	port := app(t, func(w http.ResponseWriter, req *http.Request) {
		mu.Lock()
		got = append(got, req.Method+" "+req.URL.Path)
		mu.Unlock()
		echo(w, req)
	})
	id := r.box()
	r.public(id, port)
	head := func(method string) string {
		return method + " /first HTTP/1.1\r\nHost: " + fmt.Sprintf("%d-%s.localhost", port, id) + "\r\n"
	}
	const second = "GET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n"
	cases := make(map[string]string) // names, by path
	for name, text := range map[string]string{
		"length and chunks":     head("POST") + "Content-Length: 40\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"chunks, short length":  head("POST") + "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n" + fmt.Sprintf("%x\r\n%s\r\n0\r\n\r\n", len(second), second),
		"two lengths":           head("POST") + "Content-Length: 3\r\nContent-Length: 43\r\n\r\nabc" + second,
		"length list":           head("POST") + "Content-Length: 3, 43\r\n\r\nabc" + second,
		"odd encoding":          head("POST") + "Transfer-Encoding: xchunked\r\n\r\n" + second,
		"encoding list":         head("POST") + "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n" + second,
		"encoding, tab":         head("POST") + "Transfer-Encoding:\tchunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
		"space before colon":    head("POST") + "Content-Length : 3\r\n\r\nabc" + second,
		"signed length":         head("POST") + "Content-Length: +3\r\n\r\nabc" + second,
		"length in hexadecimal": head("POST") + "Content-Length: 0x3\r\n\r\nabc" + second,
		"bad chunk":             head("POST") + "Transfer-Encoding: chunked\r\n\r\n3 ;x\nabc\r\n0\r\n\r\n" + second,
		"hop by hop length":     head("POST") + "Content-Length: 43\r\nConnection: content-length\r\n\r\n" + second + strings.Repeat("x", 43-len(second)),
		"body of a GET":         head("GET") + "Content-Length: " + strconv.Itoa(len(second)) + "\r\n\r\n" + second,
		"bare CR":               head("POST") + "X: a\rTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
		"folded encoding":       head("POST") + "Transfer-Encoding:\r\n chunked\r\nContent-Length: 3\r\n\r\nabc" + second,
		"folded length":         head("POST") + "X: y\r\n\tContent-Length: 0\r\nContent-Length: " + strconv.Itoa(len(second)) + "\r\n\r\n" + second,
		"absolute, other host":  "POST http://x/first HTTP/1.1\r\nHost: " + fmt.Sprintf("%d-%s.localhost", port, id) + "\r\nContent-Length: 3\r\n\r\nabc" + second,
		"upgrade is refused":    head("GET") + "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: x\r\n\r\n" + second,
		"upgrade with a body":   head("POST") + "Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: " + strconv.Itoa(len(second)) + "\r\n\r\n" + second,
		"expectation":           head("POST") + "Expect: 100-continue\r\nContent-Length: " + strconv.Itoa(len(second)) + "\r\n\r\n" + second,
		"encoding in a trailer": head("POST") + "Transfer-Encoding: chunked\r\nTrailer: Content-Length\r\n\r\n0\r\nContent-Length: 43\r\n\r\n" + second,
		"old protocol, chunks":  strings.Replace(head("POST"), "HTTP/1.1", "HTTP/1.0", 1) + "Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n0\r\n\r\n" + second,
		"HTTP/2 at once":        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + head("GET") + "\r\n",
		"upgrade to h2c":        head("GET") + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n\r\n",
	} {
		// Each has a path of its own: one that its viewer has left may come late.
		path := "/first/" + strconv.Itoa(len(cases))
		cases[path] = name
		rawOnly(t, r.main, strings.Replace(text, "/first", path, 1))
	}
	mu.Lock()
	defer mu.Unlock()
	for i, request := range got {
		_, path, _ := strings.Cut(request, " ")
		if name, ok := cases[path]; !ok || slices.Contains(got[:i], request) {
			t.Errorf("%s: the sandbox got %q, all: %q", name, request, got)
		}
	}
}

// TestOddAnswers has a sandbox answer in ways that no server should.
func TestOddAnswers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	id := r.box()
	c := r.client(false)
	for name, tc := range map[string]struct {
		answer string
		status int // 0: broken off
	}{
		"no HTTP":         {"SSH-2.0-x\r\n", http.StatusBadGateway},
		"nothing":         {"", http.StatusBadGateway},
		"large head":      {"HTTP/1.1 200 OK\r\n" + strings.Repeat("X: "+strings.Repeat("x", 1000)+"\r\n", 100) + "\r\n", http.StatusBadGateway},
		"two lengths":     {"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab", http.StatusBadGateway},
		"length + chunks": {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", http.StatusOK},
		"short":           {"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nab", 0},
		"bad chunk":       {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\nab\r\n", 0},
		"not asked for":   {"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nab", http.StatusBadGateway},
		"early hints":     {"HTTP/1.1 103 Early Hints\r\nSet-Cookie: sandpit_preview=x\r\nLink: </x>\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nab", http.StatusOK},
		"status":          {"HTTP/1.1 099 x\r\n\r\n", http.StatusBadGateway},
	} {
		t.Run(name, func(t *testing.T) {
			port := rawApp(t, tc.answer)
			r.public(id, port)
			res, err := c.Do(request(t, http.MethodGet, r.hostURL(id, port), nil))
			if err != nil {
				if tc.status != 0 {
					t.Error(err)
				}
				return
			}
			defer res.Body.Close()
			text, err := readAll(res.Body)
			if tc.status == 0 {
				if err == nil {
					t.Errorf("a whole answer: %q", text)
				}
				return
			}
			if err != nil || res.StatusCode != tc.status || len(res.Header["Set-Cookie"])+len(res.Header["Link"]) > 0 {
				t.Errorf("%d, %v, %v\n%s", res.StatusCode, err, res.Header, text)
			}
		})
	}
}

// TestPagesOfOthers has the cookie work for pages of the same port, and for people that
// follow a link, only.
func TestPagesOfOthers(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, echo)
	id := r.box()
	c := r.client(false)
	own := "http://" + r.host(id, port)
	page := []string{"Accept", "text/html,*/*"}
	for _, tc := range []struct {
		name, method string
		pairs        []string
		status       int
	}{
		{"own page", "POST", []string{"Sec-Fetch-Site", "same-origin", "Origin", own}, http.StatusOK},
		{"own page, old browser", "POST", []string{"Origin", own}, http.StatusOK},
		{"own picture, old browser", "GET", []string{"Referer", own + "/x"}, http.StatusOK},
		{"own link, old browser", "GET", append(page, "Referer", own+"/x"), http.StatusOK},
		{"typed", "GET", []string{"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"}, http.StatusOK},
		{"link", "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, http.StatusOK},
		{"frame of a page that may", "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe", "Referer", "https://App.example.org/x"}, http.StatusOK},
		{"frame of a page that may, old browser", "GET", append(page, "Referer", "https://app.example.org/"), http.StatusOK},
		{"fetch of a page that may have frames", "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "cors", "Sec-Fetch-Dest", "empty", "Referer", "https://app.example.org/"}, http.StatusForbidden},
		{"picture of a page that may have frames, old browser", "GET", []string{"Referer", "https://app.example.org/"}, http.StatusForbidden},
		{"no browser", "POST", nil, http.StatusForbidden},
		{"fetch", "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "empty"}, http.StatusForbidden},
		{"script", "GET", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors", "Sec-Fetch-Dest", "script"}, http.StatusForbidden},
		{"frame", "GET", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "iframe"}, http.StatusForbidden},
		{"form", "POST", []string{"Sec-Fetch-Site", "same-site", "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document"}, http.StatusForbidden},
		{"old browser", "POST", []string{"Origin", "http://evil.localhost"}, http.StatusForbidden},
		{"page without an origin", "POST", []string{"Origin", "null"}, http.StatusForbidden},
		{"picture, old browser", "GET", []string{"Referer", "http://8001-" + string(id) + ".localhost/"}, http.StatusForbidden},
		{"picture without a referrer", "GET", nil, http.StatusForbidden},
		{"host that looks alike", "GET", []string{"Referer", own + ".evil.example/"}, http.StatusForbidden},
		{"another scheme", "GET", []string{"Referer", "ftp" + own[4:] + "/"}, http.StatusForbidden},
		{"WebSocket", "GET", []string{"Origin", "http://evil.localhost", "Connection", "Upgrade", "Upgrade", "websocket"}, http.StatusForbidden},
		{"WebSocket of no page", "GET", []string{"Connection", "Upgrade", "Upgrade", "websocket", "Accept", "text/html"}, http.StatusForbidden},
	} {
		pairs := append([]string{"Cookie", "sandpit_preview=" + r.token(id, port)}, tc.pairs...)
		got := send(t, c, request(t, tc.method, own, nil, pairs...))
		if got.status != tc.status || strings.Contains(got.body, "<script>") {
			t.Errorf("%s: status %d, want %d\n%s", tc.name, got.status, tc.status, got.body)
		}
		if policy := strings.Join(got.header.Values("Content-Security-Policy"), "; "); got.status == http.StatusOK && policy != "frame-ancestors 'self' https://app.example.org" {
			t.Errorf("%s: policy %q", tc.name, policy)
		}
	}
	// A page that may be in a frame, or was opened by a person: a page finds out that cannot be.
	for _, pairs := range [][]string{page, append(page, "Referer", "http://evil.example/")} {
		got := send(t, c, request(t, http.MethodGet, own+"/x?a=%20%22", nil, append(pairs, "Cookie", "sandpit_preview="+r.token(id, port))...))
		if got.status != http.StatusForbidden || !strings.Contains(got.body, `<a href="/x?a=%20%22">`) || !strings.Contains(got.body, "<script>") ||
			!strings.Contains(got.header.Get("Content-Security-Policy"), "frame-ancestors 'none'") || got.header.Get("X-Frame-Options") != "DENY" {
			t.Errorf("%d: %v\n%s", got.status, got.header, got.body)
		}
	}
}

// TestFramePolicy says which sites may show previews in frames, beside what programs say.
func TestFramePolicy(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	port := app(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Security-Policy", "frame-ancestors *")
		w.Header().Set("Referrer-Policy", "same-origin, no-referrer")
	})
	id := r.box()
	c, token := r.client(false), r.token(id, port)
	cookie := "sandpit_preview=" + token
	for name, tc := range map[string]struct {
		target, policy, referrer string
		pairs                    []string
	}{
		"by host":              {r.hostURL(id, port), "frame-ancestors *; frame-ancestors 'self' https://app.example.org", "same-origin, no-referrer", []string{"Cookie", cookie, "Sec-Fetch-Site", "none"}},
		"by host, old browser": {r.hostURL(id, port), "frame-ancestors *; frame-ancestors 'self' https://app.example.org", "same-origin", []string{"Cookie", cookie, "Referer", r.hostURL(id, port) + "/"}},
		"by path":              {r.pathURL(id, port) + "/", "frame-ancestors 'self' https://app.example.org", "same-origin, no-referrer", []string{"Cookie", cookie, "Sec-Fetch-Site", "none"}},
		"by path, old browser": {r.pathURL(id, port) + "/", "frame-ancestors https://app.example.org", "same-origin", []string{"Cookie", cookie, "Referer", r.pathURL(id, port) + "/"}},
		"by URL":               {r.hostURL(id, port) + "/?sandpit_token=" + token, "frame-ancestors *; frame-ancestors 'self' https://app.example.org", "same-origin", nil},
		"by a program":         {r.hostURL(id, port), "frame-ancestors *", "same-origin, no-referrer", []string{"Sandpit-Preview-Token", token}},
	} {
		got := get(t, c, tc.target, tc.pairs...)
		if policy := strings.Join(got.header.Values("Content-Security-Policy"), "; "); got.status != http.StatusOK || !strings.HasSuffix(policy, tc.policy) {
			t.Errorf("%s: status %d, policy %q, want %q", name, got.status, policy, tc.policy)
		}
		if referrer := got.header.Get("Referrer-Policy"); referrer != tc.referrer {
			t.Errorf("%s: referrer policy %q, want %q", name, referrer, tc.referrer)
		}
	}
}

// TestManyCookies has a program see no more cookies than programs take, the smallest ones, and
// a browser forget those that were set for the parent of all previews.
func TestManyCookies(t *testing.T) {
	t.Parallel()
	r := newRigAt(t, "preview.test")
	port := app(t, echo)
	id := r.box()
	c, good := r.client(false), r.token(id, port)
	large := func(n int) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf("toss%d=%s", i, strings.Repeat("x", 4000)))
		}
		return strings.Join(all, "; ")
	}
	for _, n := range []int{1, 40, 160} {
		cookie := "mine=1; " + large(n/2) + "; sandpit_preview=" + good + "; " + large(n) + "; session=secret"
		got := get(t, c, r.hostURL(id, port), "Cookie", cookie, "Sec-Fetch-Site", "none")
		got.want(t, http.StatusOK, "GET / ")
		seen := strings.Join(got.seen("Cookie"), "; ")
		if !strings.HasPrefix(seen, "mine=1; ") || !strings.HasSuffix(seen, "session=secret") || len(seen) > 12<<10 || strings.Contains(seen, "spv_") {
			t.Errorf("%d cookies: the program sees %d bytes, %.60s ... %s", n, len(seen), seen, seen[max(0, len(seen)-40):])
		}
		expired := got.header.Values("Set-Cookie")
		if n > 3 && (len(expired) == 0 || !strings.HasSuffix(expired[0], "=; Domain=preview.test; Path=/; Max-Age=0") || !strings.HasPrefix(expired[0], "toss")) || n == 1 && len(expired) > 0 {
			t.Errorf("%d cookies: expired %.200q", n, expired)
		}
	}
	get(t, c, r.hostURL(id, port), "Cookie", large(40), "Sec-Fetch-Site", "none").want(t, http.StatusUnauthorized, "private")
	get(t, c, r.hostURL(id, port), "X-Large", strings.Repeat("x", 65<<10), "Sandpit-Preview-Token", good).want(t, http.StatusRequestHeaderFieldsTooLarge, "65536 bytes")
	for _, pairs := range [][]string{{"Cookie", large(20)}, {"X-Large", strings.Repeat("x", 65<<10)}} {
		get(t, c, "http://"+r.main+"/v1/sandboxes", append(pairs, "X-Api-Key", r.keys[alice])...).want(t, http.StatusRequestHeaderFieldsTooLarge, "65536 bytes")
	}
	get(t, c, "http://"+r.main+"/v1/sandboxes", "X-Api-Key", r.keys[alice]).want(t, http.StatusOK, "")
}
