package policy

import (
	"cmp"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http/httpguts"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// The bounds of headers and of the secrets in them.
const (
	maxHeaders     = 64
	maxHeaderValue = 1024     // bytes of one value, before secrets are put in
	maxSecretValue = 16 << 10 // bytes
	maxSecretName  = 64
)

// Header is a parsed header rule.
type Header struct {
	// Host is in Normal form.
	Host string
	Port uint16
	Name string
	// Value is the value of the header, with references to secrets.
	Value string
}

// reference matches a reference to a secret in a value.
var reference = pattern.New(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// secretName matches a valid name between the brackets.
var secretName = pattern.New(`^[A-Za-z_][A-Za-z0-9_]*$`)

// reserved are headers that belong to a connection, or that name the target of a request.
var reserved = []string{
	"connection", "content-length", "expect", "host", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
	"te", "trailer", "transfer-encoding", "upgrade",
}

func parseHeaders(list []sandpit.NetworkHeader) ([]Header, error) {
	if len(list) > maxHeaders {
		return nil, sandpit.Errorf(sandpit.Invalid, "%d network headers: want at most %d", len(list), maxHeaders)
	}
	headers := make([]Header, 0, len(list))
	for _, given := range list {
		h, err := parseHeader(given)
		if err != nil {
			return nil, err
		}
		same := func(o Header) bool {
			return o.Host == h.Host && o.Port == h.Port && strings.EqualFold(o.Name, h.Name)
		}
		if slices.ContainsFunc(headers, same) {
			return nil, invalidHeader(given, "duplicate")
		}
		headers = append(headers, h)
	}
	return headers, nil
}

// invalidHeader returns an error without the value, which could have a secret in it.
func invalidHeader(h sandpit.NetworkHeader, why string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "network header %.100q of host %.100q: %s", h.Name, h.Host, why),
		"a header has a host such as api.example.org, a name, and a value with a secret in it, such as Bearer ${TOKEN}")
}

func parseHeader(given sandpit.NetworkHeader) (Header, error) {
	r := rule{text: given.Host}
	subject, err := r.splitPort()
	if err == nil {
		err = r.parseName(subject)
	}
	if _, addrErr := netip.ParseAddr(subject); err != nil || r.below || addrErr == nil {
		return Header{}, invalidHeader(given, "the host is not a name, or name:port")
	}
	h := Header{Host: r.name, Port: cmp.Or(r.port, portHTTPS), Name: given.Name, Value: given.Value}
	switch {
	case h.Port == portHTTP:
		return Header{}, invalidHeader(given, "port 80 is not encrypted")
	case !httpguts.ValidHeaderFieldName(h.Name) || len(h.Name) > maxSecretName:
		return Header{}, invalidHeader(given, "invalid header name")
	case slices.Contains(reserved, strings.ToLower(h.Name)):
		return Header{}, invalidHeader(given, "this header belongs to the connection and cannot be set")
	case len(h.Value) > maxHeaderValue || !httpguts.ValidHeaderFieldValue(h.Value):
		return Header{}, invalidHeader(given, "invalid header value")
	case !reference().MatchString(h.Value):
		return Header{}, invalidHeader(given, "the value has no reference to a secret")
	}
	return h, nil
}

// Fill replaces the references in the value by secrets. It returns the name of a missing
// secret, or "".
func (h Header) Fill(secrets map[string]string) (value, missing string) {
	value = reference().ReplaceAllStringFunc(h.Value, func(ref string) string {
		name := ref[2 : len(ref)-1]
		secret, ok := secrets[name]
		if !ok {
			missing = name
		}
		return secret
	})
	return value, missing
}

// HeadersFor returns the headers that are set for a host, which is in Normal form.
func (r *Rules) HeadersFor(host string, port uint16) []Header {
	var found []Header
	for _, h := range r.headers {
		if h.Host == host && h.Port == port {
			found = append(found, h)
		}
	}
	return found
}

// hasHeaders reports whether headers are set for one of the names.
func (r *Rules) hasHeaders(names []string, port uint16) bool {
	return slices.ContainsFunc(r.headers, func(h Header) bool { return h.Port == port && slices.Contains(names, h.Host) })
}

// CheckSecret refuses an invalid name or value of a secret. The error does not have the
// value.
func CheckSecret(name, value string) error {
	if len(name) > maxSecretName || !secretName().MatchString(name) {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "invalid secret name %.100q", name),
			"a name has letters, digits and _, and does not begin with a digit")
	}
	if len(value) > maxSecretValue || !httpguts.ValidHeaderFieldValue(value) {
		return sandpit.Errorf(sandpit.Invalid, "secret %s: want at most %d bytes that are valid in a header", name, maxSecretValue)
	}
	return nil
}

// SplitTarget parses "name:port" or "address:port". Exactly one of name, in Normal
// form, and addr is valid.
func SplitTarget(target string) (name string, addr netip.Addr, port uint16, err error) {
	host, portText, err := net.SplitHostPort(target)
	n, portErr := strconv.ParseUint(portText, 10, 16)
	if err != nil || portErr != nil || n == 0 {
		return "", addr, 0, sandpit.Errorf(sandpit.Invalid, "target %.300q: want name:port or address:port", target)
	}
	if addr, err = netip.ParseAddr(host); err == nil {
		return "", addr.Unmap().WithZone(""), uint16(n), nil
	}
	r := rule{text: host}
	if err := r.parseName(host); err != nil || r.below {
		return "", netip.Addr{}, 0, sandpit.Errorf(sandpit.Invalid, "target %.300q: %.300q is neither a name nor an address", target, host)
	}
	return r.name, netip.Addr{}, uint16(n), nil
}

// checkLimits refuses invalid limits.
func checkLimits(l sandpit.NetworkLimits) error {
	for _, f := range []struct {
		name      string
		value     int64
		low, high int64
	}{
		{"receive", l.Receive, minRate, maxRate},
		{"send", l.Send, minRate, maxRate},
		{"connections", int64(l.Connections), 1, maxCount},
		{"connection_rate", int64(l.ConnectionRate), 1, maxCount},
	} {
		if f.value != 0 && (f.value < f.low || f.value > f.high) {
			return sandpit.Errorf(sandpit.Invalid, "network limit %s %d: want none or %d to %d", f.name, f.value, f.low, f.high)
		}
	}
	return nil
}

// The bounds of limits. With fewer bytes a second connections do not work.
const (
	minRate  = 1 << 10
	maxRate  = 1 << 40
	maxCount = 1 << 20
)
