package preview

import (
	"bufio"
	"net/http"
	"net/http/httptest"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

const fuzzID = sandpit.ID("sabcdefghij012345678")

// FuzzTarget names ports in every way. What is understood is a port of a sandbox, named
// in the one form that there is.
func FuzzTarget(f *testing.F) {
	f.Add("8000-"+string(fuzzID)+".localhost:8090", "/p/"+string(fuzzID)+"/8000/a%2Fb?c", string(fuzzID), "8000")
	f.Add("0-"+string(fuzzID)+".LocalHost.", "/p/"+string(fuzzID)+"/080/", "x", "+1")
	f.Add("[::1]:80", "/%70/"+string(fuzzID)+"/1/", "", "65536")
	f.Fuzz(func(t *testing.T, host, path, id, port string) {
		check := func(got target, ok bool) {
			if ok && (got.id.Validate() != nil || got.port < 1 || got.port > 65535) {
				t.Errorf("%q, %q, %q, %q: %+v", host, path, id, port, got)
			}
		}
		byName, ok := hostTarget(host, "localhost")
		check(byName, ok)
		if want := strconv.Itoa(byName.port) + "-" + string(byName.id) + ".localhost"; ok && !strings.HasPrefix(strings.ToLower(host), want) {
			t.Errorf("%q is %q", host, want)
		}
		byHeaders, err := headerTarget(http.Header{headerSandbox: {id}, headerPort: {port}})
		check(byHeaders, err == nil)
		u, err := url.ParseRequestURI(path)
		if err != nil {
			return
		}
		got, ok := pathTarget(u.Path)
		check(got, ok)
		if !ok {
			return
		}
		inner, raw, whole := got.innerPath(u.Path, u.RawPath)
		if whole && (got.prefix+inner != u.Path || raw != "" && got.prefix+raw != u.RawPath) {
			t.Errorf("%q: inside %q, %q", path, inner, raw)
		}
	})
}

// headerOf reads lines as a server does.
func headerOf(text string) http.Header {
	h, err := textproto.NewReader(bufio.NewReader(strings.NewReader(text + "\r\n\r\n"))).ReadMIMEHeader()
	if err != nil {
		return nil
	}
	return http.Header(h)
}

// FuzzCleanRequest looks for a way to show a sandbox what is not its business: as Go's
// own parser of cookies reads it, which programs inside may have, too.
func FuzzCleanRequest(f *testing.F) {
	f.Add("Cookie: a=1; sandpit_preview=spv_x;b=\"2\"\r\nX-Forwarded-For: 1.2.3.4", 8000)
	f.Add("Authorization: Bearer  spv_x\r\nx-access-token: y\r\nX_Forwarded_For: z", guestPort)
	f.Add("Cookie: a=1; sandpit_preview;spv_x;b=\"2\"", 8000)
	f.Add("Cookie: __HOST-sandpit_preview =x; =sandpit_preview\r\nCookie: \tSANDPIT_preview\t=y", 80)
	f.Fuzz(func(t *testing.T, text string, port int) {
		h := headerOf(text)
		if h == nil {
			return
		}
		cleanRequest(h, target{id: fuzzID, port: port})
		for name, values := range h {
			if name == "Cookie" {
				continue // cookies go by their names, below
			}
			if slices.Contains(hiddenRequestHeaders, name) || strings.HasPrefix(name, "X-Forwarded") || strings.Contains(name, "_") || slices.ContainsFunc(values, isOurSecret) {
				t.Errorf("%q: %q is left of %q", name, values, text)
			}
		}
		for _, c := range (&http.Request{Header: h}).Cookies() {
			if isOurCookie(c.Name) {
				t.Errorf("cookie %q is left of %q", c.Name, text)
			}
		}
		if port == guestPort && h.Get(headerGuest) != "" {
			t.Errorf("the guest is shown %q", h.Get(headerGuest))
		}
	})
}

// FuzzBoundCookies looks for cookies with which a program is sent more than it takes, or the
// viewer's own cookie is lost, or a response sets an invalid cookie name.
func FuzzBoundCookies(f *testing.F) {
	f.Add("a=1; b=2", 1)
	f.Add("a=1; sandpit_preview=x; a=1;;=; b\x00=3; a=1", 5000)
	f.Add("__Host-sandpit_preview=y; toss=\"1;2\"; x=y=z; \r\n=1", 9000)
	f.Fuzz(func(t *testing.T, text string, times int) {
		times = min(max(times, 1), 10000)
		if len(text)*times > 1<<20 {
			return
		}
		lines := []string{strings.Repeat(text+"; ", times), "sandpit_preview=ours"}
		h := http.Header{"Cookie": slices.Clone(lines)}
		dropped := boundCookies(h)
		size, ours := 0, false
		for _, line := range h["Cookie"] {
			for part := range strings.SplitSeq(line, ";") {
				if part = strings.TrimSpace(part); isOurCookie(cookieName(part)) {
					ours = ours || part == "sandpit_preview=ours"
					continue
				}
				size += len(part)
			}
		}
		if size > maxCookies || !ours {
			t.Errorf("%d bytes are left, ours %v, of %d times %q", size, ours, times, text)
		}
		if len(dropped) == 0 && !slices.Equal(h["Cookie"], lines) {
			t.Errorf("%q became %q", lines, h["Cookie"])
		}
		for _, line := range expireCookies(dropped, "preview.test", target{mode: byHost}) {
			name, rest, _ := strings.Cut(line, "=")
			if isOurCookie(name) || strings.ContainsAny(line, "\r\n") || rest != "; Domain=preview.test; Path=/; Max-Age=0" {
				t.Errorf("an answer says %q", line)
			}
		}
	})
}

// FuzzCleanAnswer looks for a way to set cookies for others, or to lead a viewer
// elsewhere by a link that looks like one's own.
func FuzzCleanAnswer(f *testing.F) {
	f.Add("Set-Cookie: a=1; Domain=localhost; Path=/x; path=\r\nLocation: //evil.example/x", true)
	f.Add("Set-Cookie: =sandpit_preview=x;;PATH =/;domain\r\nLocation: http://localhost:8000//evil.example", false)
	f.Add("Location: /\\evil.example\r\nContent-Location: /%2f/x", true)
	r := httptest.NewRequestWithContext(f.Context(), http.MethodGet, "http://8000-x.localhost/", nil)
	f.Fuzz(func(t *testing.T, text string, paths bool) {
		h := headerOf(text)
		if h == nil {
			return
		}
		to := target{id: fuzzID, port: 8000, mode: byHost}
		if paths {
			to.mode, to.prefix = byPath, "/p/"+string(fuzzID)+"/8000"
		}
		before := h.Clone()
		if err := (view{request: r, target: to}).cleanAnswer(h); err != nil {
			return
		}
		for _, name := range refusedHeaders {
			if h.Get(name) != "" {
				t.Errorf("%s is shown", name)
			}
		}
		for _, c := range (&http.Response{Header: h}).Cookies() {
			if isOurCookie(c.Name) || c.Domain != "" || c.Path != "" && !strings.HasPrefix(c.Path, to.prefix+"/") {
				t.Errorf("cookie %+v of %q", c, text)
			}
		}
		link := h.Get("Location")
		as := strings.NewReplacer("\t", "", "\n", "", "\r", "").Replace(strings.Trim(before.Get("Location"), plainSpace)) // as browsers read it
		if link == before.Get("Location") || link == as || strings.HasPrefix(link, to.prefix+"/") && !strings.HasPrefix(link, "//") && !strings.HasPrefix(link, "/\\") {
			return
		}
		t.Errorf("%q leads to %q", before.Get("Location"), link)
	})
}

// FuzzQuery looks for a query that keeps a token.
func FuzzQuery(f *testing.F) {
	f.Add("a=b&%73andpit_token=spv_x&c=%zz")
	f.Add("a=b&sandpit%5ftoken=spv_x&;sandpit_token")
	f.Add("sandpit_ticket=spt_a&sandpit%5Fticket=spt_b")
	f.Fuzz(func(t *testing.T, text string) {
		rest := withoutToken(text)
		values, _ := url.ParseQuery(rest) // what it understands of it
		if values.Has(queryToken) || values.Has(queryTicket) {
			t.Errorf("%q is left of %q", rest, text)
		}
	})
}
