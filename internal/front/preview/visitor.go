package preview

import (
	"crypto/sha256"
	_ "embed"
	"encoding/base64"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// A browser sends the cookie of a private preview whatever page has it make a request, as
// long as both are below one domain: host names of a domain of one's own are the same site
// for it. So a request with nothing but the cookie must come from the preview itself.
//
// Browsers say where a request comes from in Sec-Fetch-* where the connection is encrypted
// or leads to this machine, in Origin when a page sends something, and in Referer unless a
// page forbids it. A page cannot forge any of these for another host name.

// errPage refuses a request that the page of another site has made.
var errPage = sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "a page of another site may not use this preview"),
	"make the port public, or send a token in the header "+headerToken)

// errBounce is the result of a navigation that may be a followed link or a frame: the page that
// is shown instead determines which.
var errBounce = sandpit.Errorf(sandpit.PermissionDenied, "a page of another site may have opened this preview")

// checkPage refuses requests that a page of another origin makes with the viewer's cookie.
// Only a followed link may come from another origin.
func (a *authorizer) checkPage(r *http.Request) error {
	site := r.Header.Get("Sec-Fetch-Site")
	read := r.Method == http.MethodGet || r.Method == http.MethodHead
	switch {
	case site == "same-origin" || site == "none":
		return nil
	case site != "":
		if read && r.Header.Get("Sec-Fetch-Mode") == "navigate" && (r.Header.Get("Sec-Fetch-Dest") == "document" || a.isFramer(r)) {
			return nil
		}
		return errPage
	}
	if origin := r.Header.Get("Origin"); origin != "" {
		if isHost(origin, r.Host) {
			return nil
		}
		return errPage
	}
	referer := r.Header.Get("Referer")
	switch visit := isVisit(r); {
	case referer != "" && isHost(referer, r.Host), visit && a.isFramer(r):
		return nil
	case visit:
		return errBounce
	}
	return errPage
}

// isHost reports whether a URL is of a host, with its port.
func isHost(text, host string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "http" || u.Scheme == "https") && strings.EqualFold(u.Host, host)
}

// isFramer reports whether a request comes from a page that may show previews in frames.
func (a *authorizer) isFramer(r *http.Request) bool {
	u, err := url.Parse(r.Header.Get("Referer"))
	return err == nil && slices.Contains(a.frames, strings.ToLower(u.Scheme+"://"+u.Host))
}

// guardFrames has a browser show a private preview in frames of its own pages only, and in
// those of origins that are named. It does so beside the policy of the program.
//
// By path other previews have the same origin. Where browsers say in Sec-Fetch-* what a frame
// is about to load, those were refused; elsewhere there are no frames by path.
func (v view) guardFrames(h http.Header, p pass) {
	if !p.byBrowser {
		return
	}
	own, isDeclared := "'self'", v.request.Header.Get("Sec-Fetch-Site") != ""
	if v.target.mode == byPath && !isDeclared {
		own = "'none'"
		if len(v.frames) > 0 {
			own = "" // 'none' must be alone
		}
	}
	h.Add("Content-Security-Policy", strings.Join(strings.Fields("frame-ancestors "+own+" "+strings.Join(v.frames, " ")), " "))
	if !isDeclared {
		keepReferer(h)
	}
}

// keepReferer replaces a policy that sends no referrer by one that sends it to the same origin:
// without it, a page's own request looks like another page's.
func keepReferer(h http.Header) {
	last := ""
	for _, line := range h.Values("Referrer-Policy") {
		for word := range strings.SplitSeq(line, ",") {
			if word = strings.ToLower(strings.TrimSpace(word)); word != "" {
				last = word
			}
		}
	}
	if last == "no-referrer" {
		h.Set("Referrer-Policy", "same-origin")
	}
}

//go:embed bounce.html
var bounceText string

// bounce opens a preview again from the preview's own host, unless it is in a frame.
var bounce = template.Must(template.New("bounce").Parse(bounceText))

// bounceScript continues at once in a window, unless that failed a moment ago in the same tab.
// It changes the address first, because the same address with a fragment is not a navigation.
const bounceScript = `"use strict";
(() => {
	const key = "sandpit-preview-opened", to = location.href, [last, at] = (sessionStorage.getItem(key) || "").split(" ");
	if (window.top !== window || last === to && Date.now() - at < 10000) return;
	sessionStorage.setItem(key, to + " " + Date.now());
	history.replaceState(null, "", location.pathname + (location.search ? "" : "?"));
	location.replace(to);
})();`

// bouncePolicy lets the page run its own script, and be in no frame.
func bouncePolicy() string {
	sum := sha256.Sum256([]byte(bounceScript))
	return "default-src 'none'; script-src 'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) +
		"'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
}

// showBounce answers a navigation that may be a frame's.
func showBounce(a *answer, r *http.Request, t target) {
	h := a.Header()
	clear(h)
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", bouncePolicy())
	h.Set("X-Frame-Options", "DENY")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	path, _, ok := t.innerPath(r.URL.EscapedPath(), "")
	if !ok {
		path = "/"
	}
	a.WriteHeader(http.StatusForbidden)
	_ = bounce.Execute(a, struct { // fails only if the client is gone
		To     string
		Script template.JS
	}{t.prefix + pathAndQuery(path, r.URL.RawQuery), bounceScript})
}
