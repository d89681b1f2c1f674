package preview

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/idna"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// Browsers read links as the URL standard of WHATWG has it, which is not how net/url reads
// them: backslashes are slashes, tabs vanish, 127.1 and 2130706433 are addresses, and %2e is
// a dot. A link must not have two meanings. So parsing is strict: an ambiguous text is
// not a link.

// errLink is the error of a response with a redirect that cannot be resolved safely.
var errLink = sandpit.WithHint(
	sandpit.Errorf(sandpit.Internal, "the program redirects to an ambiguous address"),
	"send a path, or a URL with a plain host name, in the header Location")

// link is what an answer leads to.
type link struct {
	// scheme and host are in their plain form; "" for a link without a host. A port that is
	// the scheme's own is "".
	scheme, host, port string
	// rest is what comes after the host: path, query and fragment.
	rest string
	// text is the whole link.
	text string
	// foreign links are of no scheme of the web.
	foreign bool
}

var (
	schemePattern = pattern.New(`^[A-Za-z][A-Za-z0-9+.-]*:`)
	namePattern   = pattern.New(`^[a-z0-9_-]+(\.[a-z0-9_-]+)*\.?$`)
	numberPattern = pattern.New(`^([0-9]+|0[xX][0-9a-fA-F]*)$`)
)

// parseLink reads a link on a page of a scheme. It is false for one that browsers could read
// in another way.
func parseLink(text, scheme string) (link, bool) {
	text = strings.Trim(text, plainSpace)
	text = strings.NewReplacer("\t", "", "\n", "", "\r", "").Replace(text)
	l := link{text: text, rest: text}
	if found := schemePattern().FindString(text); found != "" {
		l.scheme = strings.ToLower(strings.TrimSuffix(found, ":"))
		if l.scheme != "http" && l.scheme != "https" {
			l.foreign = true
			return l, true
		}
		l.rest = text[len(found):]
		if !strings.HasPrefix(l.rest, "//") {
			return link{}, false // with or without a host, as the page's scheme has it
		}
	}
	l.rest = withSlashes(l.rest)
	if !strings.HasPrefix(l.rest, "//") {
		return l, l.scheme == ""
	}
	if l.scheme == "" {
		l.scheme = scheme
	}
	authority := l.rest[2:]
	l.rest = ""
	if i := strings.IndexAny(authority, "/?#"); i >= 0 {
		authority, l.rest = authority[:i], authority[i:]
	}
	if i := strings.LastIndexByte(authority, '@'); i >= 0 {
		authority = authority[i+1:]
	}
	var ok bool
	l.host, l.port, ok = parseAuthority(authority)
	if l.scheme == "http" && l.port == "80" || l.scheme == "https" && l.port == "443" {
		l.port = ""
	}
	return l, ok
}

// plainSpace is what browsers cut off at both ends of a link.
const plainSpace = "\x00\x01\x02\x03\x04\x05\x06\x07\x08\t\n\v\f\r\x0e\x0f\x10\x11\x12\x13\x14\x15\x16\x17\x18\x19\x1a\x1b\x1c\x1d\x1e\x1f "

// withSlashes turns the backslashes before query and fragment, which browsers do.
func withSlashes(text string) string {
	end := len(text)
	if i := strings.IndexAny(text, "?#"); i >= 0 {
		end = i
	}
	return strings.ReplaceAll(text[:end], `\`, "/") + text[end:]
}

// parseAuthority reads a host in its plain form, and a port.
func parseAuthority(text string) (host, port string, ok bool) {
	host = text
	if end := strings.LastIndexByte(text, ':'); end >= 0 && !strings.HasSuffix(text, "]") {
		host, port = text[:end], text[end+1:]
		if port != "" {
			n, err := strconv.ParseUint(port, 10, 16)
			if err != nil {
				return "", "", false
			}
			port = strconv.FormatUint(n, 10)
		}
	}
	if inner, found := strings.CutPrefix(host, "["); found {
		inner, found = strings.CutSuffix(inner, "]")
		a, err := netip.ParseAddr(inner)
		if !found || err != nil || !a.Is6() || a.Zone() != "" {
			return "", "", false
		}
		return a.Unmap().String(), port, true
	}
	host, ok = plainName(host)
	return host, port, ok
}

// names has the profile by which browsers look up names.
var names = idna.New(idna.MapForLookup(), idna.Transitional(false), idna.StrictDomainName(false))

// plainName returns the name or IPv4 address of a host as browsers resolve it, without a
// final dot.
func plainName(host string) (string, bool) {
	name, err := names.ToASCII(host)
	name = strings.ToLower(name)
	if err != nil || !namePattern().MatchString(name) {
		return "", false
	}
	name = strings.TrimSuffix(name, ".")
	labels := strings.Split(name, ".")
	if !numberPattern().MatchString(labels[len(labels)-1]) {
		return name, true
	}
	a, ok := parseIPv4(labels)
	return a.String(), ok
}

// parseIPv4 reads an address as browsers do: of one to four numbers, in base 8, 10 or 16, of
// which the last fills all that is left.
func parseIPv4(labels []string) (netip.Addr, bool) {
	if len(labels) > 4 {
		return netip.Addr{}, false
	}
	var value uint64
	for i, label := range labels {
		n, ok := parseNumber(label)
		bits := 8
		if i == len(labels)-1 {
			bits = 8 * (5 - len(labels))
		}
		if !ok || n >= 1<<bits {
			return netip.Addr{}, false
		}
		value = value<<bits | n
	}
	return netip.AddrFrom4([4]byte{byte(value >> 24), byte(value >> 16), byte(value >> 8), byte(value)}), true
}

func parseNumber(text string) (uint64, bool) {
	if !numberPattern().MatchString(text) {
		return 0, false
	}
	base := 10
	switch {
	case len(text) > 1 && (text[1] == 'x' || text[1] == 'X'):
		text, base = text[2:], 16
	case len(text) > 1 && text[0] == '0':
		text, base = text[1:], 8
	}
	if text == "" {
		return 0, true
	}
	n, err := strconv.ParseUint(text, base, 64)
	return n, err == nil
}

// cleanPath returns a path, which begins with a slash, without dots that lead up or nowhere,
// as browsers leave it. It never begins with two slashes, which would be a host.
func cleanPath(path string) string {
	var out []string
	segments := strings.Split(strings.TrimPrefix(path, "/"), "/")
	for i, segment := range segments {
		last := i == len(segments)-1
		switch strings.ReplaceAll(strings.ToLower(segment), "%2e", ".") {
		case "..":
			if len(out) > 0 {
				out = out[:len(out)-1]
			}
			if last {
				out = append(out, "")
			}
		case ".":
			if last {
				out = append(out, "")
			}
		default:
			out = append(out, segment)
		}
	}
	return "/" + strings.TrimLeft(strings.Join(out, "/"), "/")
}

// escapeRest escapes what does not belong into a link.
func escapeRest(text string) string {
	const hex = "0123456789ABCDEF"
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case c <= ' ' || c >= 0x7f || strings.IndexByte("\"<>`\\", c) >= 0:
			b.WriteString("%" + string(hex[c>>4]) + string(hex[c&15]))
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// splitRest splits what comes after a host into the path, and query and fragment.
func splitRest(rest string) (path, tail string) {
	if i := strings.IndexAny(rest, "?#"); i >= 0 {
		return rest[:i], rest[i:]
	}
	return rest, ""
}

// outerLink returns the target of a sandbox's link for the viewer. A link to
// another site does not change; every other one stays below the preview. It returns false for
// an ambiguous link.
func (v view) outerLink(text string) (string, bool) {
	t := v.target
	l, ok := parseLink(text, v.scheme())
	if t.mode != byPath {
		return hostLink(text, l, ok, v.request, t), true
	}
	switch {
	case !ok:
		return "", false
	case l.foreign:
		return l.text, true
	case l.host != "" && !v.isOwn(l):
		return l.text, true
	}
	path, tail := splitRest(l.rest)
	inner, _, ok := t.innerPath(v.request.URL.EscapedPath(), "")
	if !ok {
		return "", false
	}
	switch {
	case l.host != "" || strings.HasPrefix(path, "/"):
		path = cleanPath("/" + strings.TrimLeft(path, "/"))
		if below, knows := strings.CutPrefix(path, t.prefix); knows && (below == "" || below[0] == '/') {
			path = cleanPath("/" + strings.TrimLeft(below, "/")) // it knows its prefix
		}
	case path == "":
		path = cleanPath(inner)
		if query := withoutToken(v.request.URL.RawQuery); !strings.HasPrefix(tail, "?") && query != "" {
			tail = "?" + query + tail
		}
	default:
		path = cleanPath(inner[:strings.LastIndexByte(inner, '/')+1] + path)
	}
	return t.prefix + escapeRest(path) + escapeRest(tail), true
}

// hostLink is outerLink for a port that has an origin of its own, or none. A link that it
// cannot parse does not change.
func hostLink(text string, l link, ok bool, r *http.Request, t target) string {
	host, port, known := parseAuthority(r.Host)
	own := l.host == "" || known && l.host == host && isPort(l.port, port) || isInside(l, t.port)
	path, tail := splitRest(l.rest)
	if !ok || l.foreign || !own || l.host == "" && !strings.HasPrefix(path, "/") {
		return text
	}
	return escapeRest(cleanPath("/"+strings.TrimLeft(path, "/"))) + escapeRest(tail)
}

// isOwn reports whether a link leads to the listener of previews by path, however its address
// is written, or to this port as programs inside see it.
func (v view) isOwn(l link) bool {
	if isInside(l, v.target.port) {
		return true
	}
	var hosts []string
	atPort := false
	for _, at := range v.ownAddresses() {
		if host, port, ok := parseAuthority(at); ok {
			hosts = append(hosts, host)
			atPort = atPort || isPort(l.port, port)
		}
	}
	a, err := netip.ParseAddr(l.host)
	local := l.host == "localhost" || strings.HasSuffix(l.host, ".localhost") || err == nil && (a.IsLoopback() || a.IsUnspecified())
	return atPort && (local || slices.Contains(hosts, l.host))
}

// isPort reports whether the port of a link, in its plain form, is that of an address.
func isPort(plain, port string) bool {
	return plain == port || plain == "" && (port == "80" || port == "443")
}

// ownAddresses are the addresses, with their ports, at which previews by path are reached.
func (v view) ownAddresses() []string {
	list := []string{v.request.Host}
	if u, err := url.Parse(v.places.Paths); err == nil && u.Host != "" {
		list = append(list, u.Host)
	}
	if at, ok := v.request.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		list = append(list, at.String())
	}
	return list
}

// isInside reports whether a link is of this port as programs inside see it.
func isInside(l link, port int) bool {
	if l.host != "localhost" && l.host != "127.0.0.1" && l.host != "0.0.0.0" && l.host != "::1" {
		return false
	}
	return isPort(l.port, strconv.Itoa(port))
}

// refreshPattern is the header Refresh: when, and where to.
var refreshPattern = pattern.New(`^[\t\n\f\r ]*([0-9.]*)[\t\n\f\r ]*(?:[;,\t\n\f\r ][\t\n\f\r ]*(?:(?i:url)[\t\n\f\r ]*=[\t\n\f\r ]*)?(.*))?$`)

// outerRefresh returns the header Refresh as a viewer gets it by path; false for one that
// browsers could read in another way.
func (v view) outerRefresh(text string) (string, bool) {
	parts := refreshPattern().FindStringSubmatch(text)
	if parts == nil {
		return "", false
	}
	to := parts[2]
	if to == "" {
		return parts[1], parts[1] != ""
	}
	if quote := to[0]; quote == '"' || quote == '\'' {
		to, _, _ = strings.Cut(to[1:], string(quote))
	}
	to, ok := v.outerLink(to)
	return parts[1] + ";url=" + to, ok
}
