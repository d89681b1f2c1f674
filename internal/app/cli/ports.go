package cli

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
)

// addPublish adds the flag that publishes ports.
func addPublish(f *pflag.FlagSet, ports *[]string) {
	f.StringArrayVarP(ports, "publish", "p", nil,
		"publish a port of the sandbox on this machine, or at another IP: `[[IP:]HOST:]PORT` (default IP 127.0.0.1, HOST any free port)")
}

// parsePorts reads [[IP:]HOST:]PORT.
func parsePorts(list []string) ([]sandpit.Port, error) {
	var ports []sandpit.Port
	for _, text := range list {
		p, ok := parsePort(text)
		if !ok {
			return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "--publish %.100q: want PORT, HOST:PORT or IP:HOST:PORT", text),
				"for example -p 8000, -p 8080:8000 or -p 0.0.0.0:8080:8000")
		}
		ports = append(ports, p)
	}
	return ports, sandpit.CheckPorts(ports)
}

func parsePort(text string) (p sandpit.Port, ok bool) {
	outside, inside, two := cutLastColon(text)
	if !two {
		outside, inside = "", text
	}
	if p.Port, ok = portNumber(inside, 1); !ok || !two {
		return p, ok
	}
	ip, host, three := cutLastColon(outside)
	if !three {
		host = outside
	}
	if three {
		if p.HostIP = strings.TrimSuffix(strings.TrimPrefix(ip, "["), "]"); p.HostIP == "" {
			return p, false
		}
	}
	p.HostPort, ok = portNumber(host, 0)
	return p, ok
}

// cutLastColon cuts a text at its last colon.
func cutLastColon(text string) (before, after string, found bool) {
	i := strings.LastIndexByte(text, ':')
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+1:], true
}

func portNumber(text string, least int) (int, bool) {
	n, err := strconv.ParseUint(text, 10, 16)
	return int(n), err == nil && int(n) >= least
}

// printPublishedPorts prints the addresses of ports for which the user chose none.
func (a *app) printPublishedPorts(asked, got []sandpit.Port) {
	for i, p := range got {
		if i < len(asked) && asked[i].HostPort == 0 {
			fmt.Fprintf(a.Err, "sandpit: port %d is published at %s\n", p.Port, escapeText(p.Address()))
		}
	}
}
