package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// networkFlags say what a sandbox may reach.
type networkFlags struct {
	allow, deny, headers, secrets []string
	receive, send                 string
	connections, rate             int
}

func (n *networkFlags) addFlags(f *pflag.FlagSet) {
	f.StringArrayVar(&n.allow, "allow", nil, "with a network, reach nothing but this `RULE`: an address, a range, a name or *.name, with or without :port")
	f.StringArrayVar(&n.deny, "deny", nil, "with a network, do not reach what this `RULE` names, whatever --allow says")
	f.StringArrayVar(&n.headers, "header", nil, "set a header in requests by HTTPS, outside of the sandbox: `HOST:NAME=VALUE`, where ${SECRET} in the value stands for a --secret")
	f.StringArrayVar(&n.secrets, "secret", nil, "secret for --header, or else in the environment of commands and told to nobody else: `NAME` of a variable of this shell, or NAME=@FILE; NAME=VALUE is seen by this machine's users")
	f.StringVar(&n.receive, "receive", "", "`SIZE` that may come from the network each second, such as 10m (default no limit)")
	f.StringVar(&n.send, "send", "", "`SIZE` that may go to the network each second (default no limit)")
	f.IntVar(&n.connections, "connections", 0, "`number` of connections at a time (default 4096)")
	f.IntVar(&n.rate, "connection-rate", 0, "`number` of connections that may begin each second (default no limit)")
}

// isSet reports whether any of them is there.
func (n *networkFlags) isSet() bool {
	return len(n.allow)+len(n.deny)+len(n.headers) > 0 || n.receive+n.send != "" || n.connections != 0 || n.rate != 0
}

// toPolicy is what the flags say, for a sandbox that is online or not.
func (n *networkFlags) toPolicy(online bool) (sandpit.NetworkPolicy, error) {
	p := sandpit.NetworkPolicy{
		Online: online, Allow: n.allow, Deny: n.deny,
		Limits: sandpit.NetworkLimits{Connections: n.connections, ConnectionRate: n.rate},
	}
	if !online && n.isSet() {
		text := "--allow and --deny are for sandboxes with a network"
		if len(n.allow)+len(n.deny) == 0 {
			text = "--header and limits of the network are for sandboxes with a network"
		}
		return p, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%s", text), "add --network")
	}
	var err error
	if p.Limits.Receive, err = parseRate("--receive", n.receive); err != nil {
		return p, err
	}
	if p.Limits.Send, err = parseRate("--send", n.send); err != nil {
		return p, err
	}
	for _, text := range n.headers {
		if text == "" {
			continue // of network set: take them away
		}
		h, err := parseHeader(text)
		if err != nil {
			return p, err
		}
		p.Headers = append(p.Headers, h)
	}
	return p, nil
}

func parseRate(flag, text string) (int64, error) {
	if text == "" || text == "0" {
		return 0, nil
	}
	n, err := config.ParseSize(text)
	if err != nil {
		return 0, sandpit.Errorf(sandpit.Invalid, "%s %q: want bytes a second, such as 512k or 10m", flag, text)
	}
	return n, nil
}

// parseHeader reads HOST:NAME=VALUE, where HOST may have a port. The text is in no
// error: somebody may have written a secret there.
func parseHeader(text string) (sandpit.NetworkHeader, error) {
	where, value, ok := strings.Cut(text, "=")
	i := strings.LastIndex(where, ":")
	if !ok || i < 1 {
		return sandpit.NetworkHeader{}, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "--header: want HOST:NAME=VALUE"),
			"such as 'api.example.org:Authorization=Bearer ${TOKEN}' with --secret TOKEN")
	}
	return sandpit.NetworkHeader{Host: where[:i], Name: where[i+1:], Value: value}, nil
}

func newNetwork(a *app) *cobra.Command {
	cmd := newGroup("network", "See and set what sandboxes reach", `See and set what sandboxes reach. Whether one has a network is fixed when it is
made; the rules may be replaced while it runs.`,
		`  sandpit network show work
  sandpit network set work --allow '*.python.org:443'
  sandpit network log -f work
  sandpit network test work pypi.org:443`)
	cmd.AddCommand(newNetworkShow(a), newNetworkSet(a), newNetworkLog(a), newNetworkTest(a))
	return cmd
}
