package cli

import (
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// networkFlags are the flags of network rules.
type networkFlags struct {
	allow, deny, headers, secrets []string
	receive, send                 string
	connections, rate             int
}

func (n *networkFlags) addFlags(f *pflag.FlagSet) {
	f.StringArrayVar(&n.allow, "allow", nil, "with a network, allow only this `RULE`: an address, a range, a name or *.name, with or without :port")
	f.StringArrayVar(&n.deny, "deny", nil, "with a network, deny this `RULE`, whatever --allow says")
	f.StringArrayVar(&n.headers, "header", nil, "set a header in HTTPS requests, outside the sandbox: `HOST:NAME=VALUE`, where ${SECRET} in the value stands for a --secret")
	f.StringArrayVar(&n.secrets, "secret", nil, "secret for --header, otherwise for the environment of commands only: `NAME` of a variable of this shell, or NAME=@FILE; NAME=VALUE is visible to this machine's users")
	f.StringVar(&n.receive, "receive", "", "`SIZE` that may be received each second, such as 10m (default no limit)")
	f.StringVar(&n.send, "send", "", "`SIZE` that may be sent each second (default no limit)")
	f.IntVar(&n.connections, "connections", 0, "`number` of simultaneous connections (default 4096)")
	f.IntVar(&n.rate, "connection-rate", 0, "`number` of new connections each second (default no limit)")
}

// isSet reports whether a flag is set.
func (n *networkFlags) isSet() bool {
	return len(n.allow)+len(n.deny)+len(n.headers) > 0 || n.receive+n.send != "" || n.connections != 0 || n.rate != 0
}

// toPolicy returns the network rules for a sandbox that is online or not.
func (n *networkFlags) toPolicy(online bool) (sandpit.NetworkPolicy, error) {
	p := sandpit.NetworkPolicy{
		Online: online, Allow: n.allow, Deny: n.deny,
		Limits: sandpit.NetworkLimits{Connections: n.connections, ConnectionRate: n.rate},
	}
	if !online && n.isSet() {
		text := "--allow and --deny are for sandboxes with a network"
		if len(n.allow)+len(n.deny) == 0 {
			text = "--header and network limits are for sandboxes with a network"
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
			continue // network set removes all headers
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

// parseHeader parses HOST:NAME=VALUE, where HOST may have a port. Errors do not quote the text:
// it may contain a secret.
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
	cmd := newGroup("network", "Show and set the network rules of sandboxes", `Show and set the network rules of sandboxes. Whether a sandbox has a network is decided
when it is created; the rules may be replaced while it runs.`,
		`  sandpit network show work
  sandpit network set work --allow '*.python.org:443'
  sandpit network log -f work
  sandpit network test work pypi.org:443`)
	cmd.AddCommand(newNetworkShow(a), newNetworkSet(a), newNetworkLog(a), newNetworkTest(a))
	return cmd
}
