package preview

import (
	"net/http"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// A page may set cookies for the parent of its host name, which a browser then sends to every
// preview of the domain, unless the domain is a public suffix for it. They cannot be told
// from a preview's own cookies. Their size is bounded, because programs and this server refuse
// a request with too many: one page could lock its viewer out of all previews.

const (
	// maxCookies is how many bytes of cookies a program is sent.
	maxCookies = 12 << 10
	// maxPlain is how many bytes the head of a request may have besides cookies.
	maxPlain = 64 << 10
	// maxExpiring is how many bytes of cookies one answer expires.
	maxExpiring = 32 << 10
)

// plainCookieName is a name that a cookie can be expired by.
var plainCookieName = pattern.New(`^[!#$%&'*+.^_` + "`" + `|~0-9A-Za-z-]+$`)

// boundCookies takes the largest cookies out of a request until no more than maxCookies bytes
// are left, and returns the names of these. Ours stay.
func boundCookies(h http.Header) (dropped []string) {
	size := 0
	var all, sizes []string
	for _, line := range h["Cookie"] {
		for part := range strings.SplitSeq(line, ";") {
			part = strings.TrimSpace(part)
			all = append(all, part)
			if !isOurCookie(cookieName(part)) {
				size += len(part) + len("; ")
				sizes = append(sizes, part)
			}
		}
	}
	if size <= maxCookies {
		return nil
	}
	slices.SortStableFunc(sizes, func(a, b string) int { return len(b) - len(a) })
	out := make(map[string]bool)
	for _, part := range sizes {
		if size <= maxCookies {
			break
		}
		if !out[part] {
			out[part] = true
			dropped = append(dropped, cookieName(part))
		}
		size -= len(part) + len("; ")
	}
	rest := slices.DeleteFunc(all, func(part string) bool { return out[part] })
	h["Cookie"] = []string{strings.Join(rest, "; ")}
	return dropped
}

func cookieName(part string) string {
	name, _, _ := strings.Cut(part, "=")
	return strings.TrimSpace(name)
}

// expireCookies returns what has a browser forget cookies that were set for the domain of the host
// names of previews. A cookie of that name which is a preview's own stays.
func expireCookies(names []string, domain string, t target) (lines []string) {
	if t.mode != byHost || !strings.Contains(domain, ".") {
		return nil
	}
	size := 0
	for _, name := range names {
		line := name + "=; Domain=" + domain + "; Path=/; Max-Age=0"
		if !plainCookieName().MatchString(name) || size+len(line) > maxExpiring {
			continue
		}
		size += len(line)
		lines = append(lines, line)
	}
	return lines
}

// errHead refuses a request whose head is too large. Servers whose previews have a domain of
// their own take larger ones from the network, for the sake of cookies.
var errHead = sandpit.Errorf(sandpit.Invalid, "the head of the request is larger than %d bytes", maxPlain)

// headSize returns how large the head of a request is, its cookies left aside.
func headSize(r *http.Request) int {
	size := len(r.RequestURI)
	for name, values := range r.Header {
		if name == "Cookie" {
			continue
		}
		for _, value := range values {
			size += len(name) + len(value) + len(": \r\n")
		}
	}
	return size
}

// cookieSize returns how large its cookies are.
func cookieSize(r *http.Request) (size int) {
	for _, line := range r.Header["Cookie"] {
		size += len(line)
	}
	return size
}

// headProblem describes a head that is too large, with the status that servers have for it.
func headProblem(r *http.Request) wire.Problem {
	p := api.ProblemOf(r.Context(), errHead)
	p.Status = http.StatusRequestHeaderFieldsTooLarge
	p.Title = http.StatusText(p.Status)
	return p
}
