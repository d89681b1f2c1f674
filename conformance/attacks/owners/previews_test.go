package owners_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
)

// viewer is a browser, as far as a server sees it. Every host name leads to the
// server.
type viewer struct{ http.Client }

func newViewer(l *lab) *viewer {
	at := strings.TrimPrefix(l.url, "http://")
	dialer := &net.Dialer{}
	return &viewer{http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			if host, _, err := net.SplitHostPort(address); err != nil || net.ParseIP(host) == nil {
				address = at
			}
			return dialer.DialContext(ctx, network, address)
		}},
	}}
}

// get asks for a page with headers in pairs.
func (v *viewer) get(t *testing.T, target string, pairs ...string) response {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), callTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(pairs); i += 2 {
		req.Header.Add(pairs[i], pairs[i+1])
	}
	res, err := v.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response{res.StatusCode, res.Header, text}
}

// previewURLs are where a port is seen.
type previewURLs struct {
	URL     string `json:"url"`
	PathURL string `json:"path_url"`
}

// visit opens a URL with a token as a person does, and returns the cookie and where it leads.
func (v *viewer) visit(t *testing.T, target string) (cookie, page string) {
	t.Helper()
	r := v.get(t, target, "Sec-Fetch-Mode", "navigate", "Sec-Fetch-Site", "none")
	cookie, _, _ = strings.Cut(r.header.Get("Set-Cookie"), ";")
	if r.status != http.StatusSeeOther || cookie == "" {
		t.Fatalf("open %s: %d %v", target, r.status, r.header)
	}
	page, _, _ = strings.Cut(target, "?")
	return cookie, page
}

// preview starts a program in a new sandbox at port 8000, which answers every request with
// what the shell command prints, and returns where it is seen.
func (p party) preview(t *testing.T, image, command string) (id string, u previewURLs) {
	t.Helper()
	id = p.create(t, image)
	script := "mkdir -p /tmp/www/cgi-bin; cat > /tmp/www/cgi-bin/x <<'END'\n#!/bin/sh\n" + command +
		"\nEND\nchmod 755 /tmp/www/cgi-bin/x; echo page of " + p.name + " > /tmp/www/index.html; busybox httpd -p 127.0.0.1:8000 -h /tmp/www"
	if out, code := p.run(t, id, script); code != 0 {
		t.Fatalf("httpd: exit status %d: %s", code, out)
	}
	p.must(t, http.MethodPost, "/v1/sandboxes/"+id+"/ports/8000/url", map[string]any{}).decode(t, &u)
	return id, u
}

// TestRedirectsByPath has alice's program lead its viewer's browser to bob's preview by path,
// which has the same origin: the browser asks with bob's cookie, and her page reads the answer.
func TestRedirectsByPath(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: "[preview]\nlisten = \"127.0.0.1:0\"\n"})
	v := newViewer(l)
	const redirect = `printf 'HTTP/1.0 302 Found\r\n%s: %s\r\nContent-Length: 0\r\n\r\n' "${QUERY_STRING%%=*}" "$(httpd -d "${QUERY_STRING#*=}")"`
	alices, seen := l.alice.preview(t, l.image, redirect)
	bobs, _ := l.bob.preview(t, l.image, "")
	cookie, page := v.visit(t, seen.PathURL)
	at, err := url.Parse(page)
	if err != nil {
		t.Fatal(err)
	}
	prefix, other := "/p/"+alices+"/8000/", "/p/"+bobs+"/8000/"
	_, port, _ := net.SplitHostPort(at.Host)
	for _, to := range []string{
		"../../../" + bobs + "/8000/", other, prefix + "../../.." + other, prefix + "%2e%2e/.%2e/%2E%2E" + other, "/.." + other,
		"http://127.1:" + port + other, "http://2130706433:" + port + other, "http://0x7f.1:" + port + other, "http://localhost:" + port + other,
		"http://" + at.Host + other, "//" + at.Host + other, "http://x@" + at.Host + other, strings.ReplaceAll(other, "/", `\`), "/\t../" + other[1:],
		"http:" + other, "http:///" + at.Host + other, "http://127。0。0。1:" + port + other,
	} {
		for _, name := range []string{"Location", "Refresh", "Content-Location"} {
			text := to
			if name == "Refresh" {
				text = "0; url=" + to
			}
			from := page + "cgi-bin/x?" + name + "=" + url.QueryEscape(text)
			r := v.get(t, from, "Cookie", cookie, "Sec-Fetch-Site", "same-origin")
			got := r.header.Get(name)
			if r.status == http.StatusBadGateway && got == "" {
				continue // refused
			}
			if got = strings.TrimPrefix(got, "0;url="); r.status != http.StatusFound || !strings.HasPrefix(got, prefix) || strings.Contains(strings.ToLower(got), "..") || strings.Contains(strings.ToLower(got), "%2e%2e/") {
				t.Errorf("%s: %q leads to %q (%d), want it refused or below %s", name, to, r.header.Get(name), r.status, prefix)
			}
		}
	}
	for to, want := range map[string]string{"/own": prefix + "own", "own?a=1": prefix + "cgi-bin/own?a=1", "https://example.org/x": "https://example.org/x"} {
		r := v.get(t, page+"cgi-bin/x?Location="+url.QueryEscape(to), "Cookie", cookie, "Sec-Fetch-Site", "same-origin")
		if got := r.header.Get("Location"); got != want {
			t.Errorf("%q leads to %q, want %q", to, got, want)
		}
	}
}

// TestNeighboursByHostName has alice's page make its viewer's browser ask for bob's private
// preview, by host names of a domain over HTTP: the browser sends bob's cookie, and says
// nothing of what it would say by HTTPS.
func TestNeighboursByHostName(t *testing.T) {
	t.Parallel()
	l := newLab(t, labOptions{config: "[preview]\ndomain = \"preview.test\"\n"})
	v := newViewer(l)
	id, seen := l.bob.preview(t, l.image, `printf 'Content-Type: text/html\r\n\r\n'; echo asked >> /tmp/asked; echo "cgi of bob"`)
	cookie, page := v.visit(t, seen.URL)
	asked := page + "cgi-bin/x"
	neighbour := strings.Replace(page, "8000-", "8001-", 1)
	html := []string{"Accept", "text/html,*/*;q=0.8"}
	for name, pairs := range map[string][]string{
		"picture":              {"Accept", "image/*", "Referer", neighbour},
		"fetch":                {"Accept", "*/*", "Referer", neighbour},
		"picture, no referrer": {"Accept", "image/*"},
		"fetch, no referrer":   {"Accept", "*/*"},
		"frame":                append([]string{"Referer", neighbour}, html...),
		"frame, no referrer":   html,
		"lookalike":            {"Accept", "*/*", "Referer", strings.TrimSuffix(page, "/") + ".evil.example/"},
	} {
		r := v.get(t, asked, append(pairs, "Cookie", cookie)...)
		if r.status != http.StatusForbidden || strings.Contains(string(r.body), "of bob") {
			t.Errorf("%s: %d, want 403\n%.200s", name, r.status, r.body)
		}
		if strings.HasPrefix(name, "frame") && !strings.Contains(r.header.Get("Content-Security-Policy"), "frame-ancestors 'none'") {
			t.Errorf("%s: the answer may be shown in a frame: %v", name, r.header)
		}
	}
	if out, _ := l.bob.run(t, id, "cat /tmp/asked 2>/dev/null"); strings.Contains(out, "asked") {
		t.Errorf("bob's program was asked: %s", out)
	}
	r := v.get(t, asked, "Cookie", cookie, "Referer", page)
	if r.status != http.StatusOK || !strings.Contains(string(r.body), "of bob") {
		t.Errorf("bob's own page: %d %s", r.status, r.body)
	}
	if policy := strings.Join(r.header.Values("Content-Security-Policy"), "; "); !strings.Contains(policy, "frame-ancestors 'self'") {
		t.Errorf("others may show it in frames: policy %q", policy)
	}
	// Cookies that a page has set for the parent of all previews lock no viewer out.
	var tossed []string
	for i := range 40 {
		tossed = append(tossed, fmt.Sprintf("toss%d=%s", i, strings.Repeat("x", 4000)))
	}
	r = v.get(t, asked, "Cookie", strings.Join(tossed, "; ")+"; "+cookie+"; own=1", "Referer", page)
	if r.status != http.StatusOK || !strings.Contains(strings.Join(r.header.Values("Set-Cookie"), "\n"), "Domain=preview.test; Path=/; Max-Age=0") {
		t.Errorf("40 cookies of the parent: %d, forgets %.200q", r.status, r.header.Values("Set-Cookie"))
	}
}
