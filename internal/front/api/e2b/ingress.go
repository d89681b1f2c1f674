package e2b

import (
	"regexp"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// Ingress says how the ports of a sandbox are reached.
type Ingress struct {
	// Made says that the sandbox was made by this API.
	Made bool
	// Private ports need a token.
	Private bool
	// Wakes says that requests resume it.
	Wakes bool
	// Host is what programs inside see as the host of requests, with "${PORT}" for the
	// port. Default: as the viewer has written it.
	Host string
	// HTTPS are the ports at which programs speak TLS.
	HTTPS []int
}

// Ports says how the ports of a sandbox are reached.
func Ports(s sandpit.Sandbox) Ingress {
	m, made := markOf(s)
	return Ingress{Made: made, Private: m.Private, Wakes: m.Wakes, Host: m.Host, HTTPS: m.HTTPS}
}

// maxHTTPS is how many ports with TLS a sandbox may have.
const maxHTTPS = 32

// hostPattern is a host with or without a port, as a header has it.
var hostPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(:[0-9]{1,5})?$`)

// checkIngress refuses what the ports of a sandbox cannot be. Invalid.
func checkIngress(n network) error {
	if n.MaskHost != "" && !hostPattern.MatchString(strings.ReplaceAll(n.MaskHost, "${PORT}", "1")) {
		return sandpit.Errorf(sandpit.Invalid, "network.maskRequestHost %.100q: want a host name, with or without :${PORT}", n.MaskHost)
	}
	if len(n.HTTPSPorts) > maxHTTPS {
		return sandpit.Errorf(sandpit.Invalid, "network.httpsPorts: %d ports; there may be %d", len(n.HTTPSPorts), maxHTTPS)
	}
	if i := slices.IndexFunc(n.HTTPSPorts, func(port int) bool { return port < 1 || port > 65535 }); i >= 0 {
		return sandpit.Errorf(sandpit.Invalid, "network.httpsPorts: %d is no port", n.HTTPSPorts[i])
	}
	return nil
}
