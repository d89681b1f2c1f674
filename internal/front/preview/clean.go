package preview

import (
	"net/http"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/internal/core/token"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// hiddenRequestHeaders are headers of a request that a sandbox does not see: sandpit's own, and those in
// which proxies vouch for a user, which are not verified.
var hiddenRequestHeaders = []string{
	headerSandbox, headerPort, headerToken, headerTraffic, headerDaytona, "Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "True-Client-Ip",
	"X-Cluster-Client-Ip", "Cf-Connecting-Ip", "Fastly-Client-Ip", "X-Original-Url", "X-Rewrite-Url", "X-Original-Host", "X-Host",
	"X-Remote-User", "Remote-User", "X-Authenticated-User", "Proxy-Authorization", "Expect",
}

// cleanRequest removes from a request what is not the sandbox's business.
func cleanRequest(h http.Header, t target) {
	for _, name := range hiddenRequestHeaders {
		h.Del(name)
	}
	if t.port == guestPort {
		h.Del(headerGuest) // the guest has a key of its own
	}
	for name := range h {
		if strings.HasPrefix(name, "X-Forwarded") || strings.Contains(name, "_") { // some servers take _ for -
			delete(h, name)
		}
	}
	for name, values := range h {
		values = slices.DeleteFunc(values, isOurSecret)
		if h[name] = values; len(values) == 0 {
			delete(h, name)
		}
	}
	cleanCookies(h)
}

// isOurSecret reports whether the value of a header is an API key, a token or a ticket.
func isOurSecret(value string) bool {
	if _, rest, ok := strings.Cut(value, " "); ok {
		value = strings.TrimSpace(rest) // of a scheme
	}
	return api.IsKey(value) || strings.HasPrefix(value, token.Prefix) || strings.HasPrefix(value, ticketPrefix)
}

// cleanCookies takes our cookies out, and leaves the rest as it was written.
func cleanCookies(h http.Header) {
	lines := h["Cookie"]
	delete(h, "Cookie")
	for _, line := range lines {
		var rest []string
		for part := range strings.SplitSeq(line, ";") {
			name, _, _ := strings.Cut(part, "=")
			if part = strings.TrimSpace(part); part != "" && !isOurCookie(strings.TrimSpace(name)) {
				rest = append(rest, part)
			}
		}
		if len(rest) > 0 {
			h.Add("Cookie", strings.Join(rest, "; "))
		}
	}
}

// refusedHeaders are headers of an answer that would change what a browser or a proxy believes
// of more than this preview.
var refusedHeaders = []string{
	"Alt-Svc", "Clear-Site-Data", "Strict-Transport-Security", "Public-Key-Pins", "Public-Key-Pins-Report-Only",
	"Proxy-Authenticate", "Proxy-Status", "Nel", "Report-To", "Reporting-Endpoints", "X-Accel-Redirect", "X-Accel-Buffering", "X-Sendfile",
	"X-Accel-Expires", "X-Accel-Limit-Rate", "X-Accel-Charset",
}

// originHeaders are headers of an answer that hold for a whole origin, which previews by path
// share.
var originHeaders = []string{
	"Service-Worker-Allowed", "Speculation-Rules", "Use-As-Dictionary", "Secure-Session-Registration", "Sec-Session-Registration",
	"Secure-Session-Challenge", "Sec-Session-Challenge", "Set-Login",
}

// cleanAnswer removes from an answer what is not the sandbox's to say, and makes its
// links ours. An error says why the answer is not for a viewer.
func (v view) cleanAnswer(h http.Header) error {
	for _, name := range refusedHeaders {
		h.Del(name)
	}
	if v.target.mode == byPath {
		for _, name := range originHeaders {
			h.Del(name)
		}
	}
	if err := v.cleanLinks(h); err != nil {
		return err
	}
	cleanSetCookies(h, v.target)
	return nil
}

// cleanLinks makes the links of an answer lead where its viewer sees the sandbox.
func (v view) cleanLinks(h http.Header) error {
	for name, outer := range map[string]func(string) (string, bool){
		"Location": v.outerLink, "Content-Location": v.outerLink, "Refresh": v.outerRefresh,
	} {
		text := h.Get(name)
		if text == "" || name == "Refresh" && v.target.mode != byPath {
			if v.target.mode == byPath {
				h.Del(name) // there may be more of them
			}
			continue
		}
		to, ok := outer(text)
		if !ok {
			return errLink
		}
		h.Set(name, to)
	}
	return nil
}

// cleanSetCookies leaves an answer cookies for its viewer's view of the sandbox only.
func cleanSetCookies(h http.Header, t target) {
	if t.mode == byHeader {
		// This is the API's own origin: nothing of a sandbox lives here.
		h.Del("Set-Cookie")
		h.Set("Content-Security-Policy", "default-src 'none'; sandbox")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Del("Access-Control-Allow-Origin")
		h.Del("Access-Control-Allow-Credentials")
		return
	}
	cookies := h["Set-Cookie"]
	delete(h, "Set-Cookie")
	for _, line := range cookies {
		if line, ok := outerCookie(line, t); ok {
			h.Add("Set-Cookie", line)
		}
	}
}

// outerCookie is a cookie of a sandbox as its viewer gets it: for this host and path
// only.
func outerCookie(line string, t target) (string, bool) {
	parts := strings.Split(line, ";")
	name, _, _ := strings.Cut(parts[0], "=")
	if isOurCookie(strings.TrimSpace(name)) {
		return "", false
	}
	out := parts[:1]
	for _, part := range parts[1:] {
		key, value, _ := strings.Cut(strings.TrimSpace(part), "=")
		switch strings.ToLower(strings.TrimSpace(key)) {
		case "domain":
		case "path":
			if value = strings.TrimSpace(value); !strings.HasPrefix(value, "/") {
				value = "/" // as browsers have it, or near it
			}
			out = append(out, " Path="+t.prefix+value)
		default:
			out = append(out, part)
		}
	}
	return strings.Join(out, ";"), true
}
