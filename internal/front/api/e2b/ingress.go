package e2b

import (
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// Ingress says how the ports of a sandbox can be reached.
type Ingress struct {
	// Made says that the sandbox was created by this API.
	Made bool
	// Private ports need a token.
	Private bool
	// Wakes says that requests resume it.
	Wakes bool
	// Host is the host of requests as programs in the sandbox see it, with "${PORT}" for the
	// port. Default: the host that the client used.
	Host string
	// HTTPS are the ports on which programs use TLS.
	HTTPS []int
}

// Ports returns how the ports of a sandbox can be reached.
func Ports(s sandpit.Sandbox) Ingress {
	m, made := markOf(s)
	return Ingress{Made: made, Private: m.Private, Wakes: m.Wakes, Host: m.Host, HTTPS: m.HTTPS}
}

// maxHTTPS is the maximum number of ports with TLS of a sandbox.
const maxHTTPS = 32

// hostPattern is the form of a Host header, with or without a port.
var hostPattern = pattern.New(`^[A-Za-z0-9]([A-Za-z0-9.-]{0,251}[A-Za-z0-9])?(:[0-9]{1,5})?$`)

// checkIngress checks the settings of ports. Invalid.
func checkIngress(n network) error {
	if n.MaskHost != "" && !hostPattern().MatchString(strings.ReplaceAll(n.MaskHost, "${PORT}", "1")) {
		return sandpit.Errorf(sandpit.Invalid, "network.maskRequestHost %.100q: want a host name, with or without :${PORT}", n.MaskHost)
	}
	if len(n.HTTPSPorts) > maxHTTPS {
		return sandpit.Errorf(sandpit.Invalid, "network.httpsPorts: %d ports; there may be %d", len(n.HTTPSPorts), maxHTTPS)
	}
	if i := slices.IndexFunc(n.HTTPSPorts, func(port int) bool { return port < 1 || port > 65535 }); i >= 0 {
		return sandpit.Errorf(sandpit.Invalid, "network.httpsPorts: invalid port %d", n.HTTPSPorts[i])
	}
	return nil
}
