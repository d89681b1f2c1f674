package preview

import (
	"net"
	"net/http"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/token"
)

// guestPort is the port of the guest's own protocol in every sandbox. It is never public, and
// a cookie does not open it.
const guestPort = 49983

// mode is how a port is named by a request.
type mode int

const (
	byHost mode = iota
	byPath
	byHeader
)

// target is what a request is for.
type target struct {
	id   sandpit.ID
	port int
	mode mode
	// label is the token in a host name that names no sandbox; "" for other requests.
	label string
	// prefix is what a path begins with that the sandbox does not see, without a slash
	// at its end; "" but for byPath.
	prefix string
	// rules are those of the sandbox.
	rules Rules
}

// The headers that name a port, and those that carry a token.
const (
	headerSandbox = "E2b-Sandbox-Id"
	headerPort    = "E2b-Sandbox-Port"
	headerToken   = "Sandpit-Preview-Token"
	headerTraffic = "E2b-Traffic-Access-Token"
	headerGuest   = "X-Access-Token" // of the guest's protocol, for guestPort only
)

// labelPattern is the first label of a host name: port and sandbox.
var labelPattern = pattern.New(`^([1-9][0-9]{0,4})-([a-z][a-z0-9]{19})$`)

// signedPattern is the first label of the host name of a signed URL: port and token.
var signedPattern = pattern.New(`^([1-9][0-9]{0,4})-([0-9a-v]{` + strconv.Itoa(token.LabelLength) + `})$`)

// hostTarget reads PORT-ID.DOMAIN or PORT-TOKEN.DOMAIN, with or without a port of ours.
func hostTarget(host, domain string) (target, bool) {
	if domain == "" {
		return target{}, false
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	label, ok := strings.CutSuffix(host, "."+domain)
	if !ok {
		return target{}, false
	}
	if parts := signedPattern().FindStringSubmatch(label); parts != nil {
		port, ok := portOf(parts[1])
		return target{label: parts[2], port: port, mode: byHost}, ok
	}
	parts := labelPattern().FindStringSubmatch(label)
	if parts == nil {
		return target{}, false
	}
	port, ok := portOf(parts[1])
	return target{id: sandpit.ID(parts[2]), port: port, mode: byHost}, ok
}

// pathPattern is how a path begins: /p/ID/PORT.
var pathPattern = pattern.New(`^/p/([a-z][a-z0-9]{19})/([1-9][0-9]{0,4})(/|$)`)

// pathTarget reads /p/ID/PORT/ at the beginning of a path.
func pathTarget(path string) (target, bool) {
	parts := pathPattern().FindStringSubmatch(path)
	if parts == nil {
		return target{}, false
	}
	port, ok := portOf(parts[2])
	return target{id: sandpit.ID(parts[1]), port: port, mode: byPath, prefix: strings.TrimSuffix(parts[0], "/")}, ok
}

// headerTarget reads the headers that E2B's clients send.
func headerTarget(h http.Header) (target, error) {
	if len(h.Values(headerSandbox)) > 1 || len(h.Values(headerPort)) > 1 {
		return target{}, sandpit.Errorf(sandpit.Invalid, "the headers %s and %s may be there once each", headerSandbox, headerPort)
	}
	port, ok := portOf(h.Get(headerPort))
	if !ok {
		return target{}, sandpit.Errorf(sandpit.Invalid, "header %s %.20q: want 1 to 65535", headerPort, h.Get(headerPort))
	}
	t := target{id: sandpit.ID(h.Get(headerSandbox)), port: port, mode: byHeader}
	return t, t.id.Validate()
}

func portOf(text string) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err == nil && n > 0
}

// innerPath is the path that the sandbox sees, as it is and as it was written ("" if
// that is the same).
func (t target) innerPath(path, raw string) (string, string, bool) {
	if t.prefix == "" {
		return path, raw, true
	}
	path, ok := strings.CutPrefix(path, t.prefix)
	if raw != "" {
		var written bool
		raw, written = strings.CutPrefix(raw, t.prefix) // otherwise the prefix is encoded in another way
		ok = ok && written
	}
	return path, raw, ok
}
