package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// networkFlags say what a sandbox may reach.
type networkFlags struct {
	allow, deny, headers, secrets []string
	receive, send                 string
	connections, rate             int
}

func (n *networkFlags) add(f *pflag.FlagSet) {
	f.StringArrayVar(&n.allow, "allow", nil, "with a network, reach nothing but this `RULE`: an address, a range, a name or *.name, with or without :port")
	f.StringArrayVar(&n.deny, "deny", nil, "with a network, do not reach what this `RULE` names, whatever --allow says")
	f.StringArrayVar(&n.headers, "header", nil, "set a header in requests by HTTPS, outside of the sandbox: `HOST:NAME=VALUE`, where ${SECRET} in the value stands for a --secret")
	f.StringArrayVar(&n.secrets, "secret", nil, "secret for --header, or else in the environment of commands and told to nobody else: `NAME` of a variable of this shell, or NAME=@FILE; NAME=VALUE is seen by this machine's users")
	f.StringVar(&n.receive, "receive", "", "`SIZE` that may come from the network each second, such as 10m (default no limit)")
	f.StringVar(&n.send, "send", "", "`SIZE` that may go to the network each second (default no limit)")
	f.IntVar(&n.connections, "connections", 0, "`number` of connections at a time (default 4096)")
	f.IntVar(&n.rate, "connection-rate", 0, "`number` of connections that may begin each second (default no limit)")
}

// given reports whether any of them is there.
func (n *networkFlags) given() bool {
	return len(n.allow)+len(n.deny)+len(n.headers) > 0 || n.receive+n.send != "" || n.connections != 0 || n.rate != 0
}

// policy is what the flags say, for a sandbox that is online or not.
func (n *networkFlags) policy(online bool) (sandpit.NetworkPolicy, error) {
	p := sandpit.NetworkPolicy{
		Online: online, Allow: n.allow, Deny: n.deny,
		Limits: sandpit.NetworkLimits{Connections: n.connections, ConnectionRate: n.rate},
	}
	if !online && n.given() {
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

// maxSecretFile bounds what is read of a file that holds a secret, in bytes.
const maxSecretFile = 64 << 10

// parseSecrets reads NAME, of this program's environment, and NAME=@FILE. A value on
// the command line could be seen by everybody on the machine.
func (a *app) parseSecrets(list []string) (map[string]string, error) {
	if len(list) == 0 {
		return nil, nil
	}
	secrets := make(map[string]string, len(list))
	for _, s := range list {
		name, from, ok := strings.Cut(s, "=")
		file, isFile := strings.CutPrefix(from, "@")
		switch {
		case ok && !isFile, name == "", isFile && file == "":
			return nil, sandpit.Errorf(sandpit.Invalid, "--secret: want the NAME of a variable of this shell, or NAME=@FILE")
		case !ok:
			value, set := lookup(a.options.Environ, name)
			if !set {
				return nil, sandpit.Errorf(sandpit.Invalid, "--secret %s: this shell has no such variable", name)
			}
			secrets[name] = value
		default:
			value, err := readSecret(file)
			if err != nil {
				return nil, sandpit.Errorf(sandpit.CodeOf(err), "--secret %s: %w", name, err)
			}
			secrets[name] = value
		}
	}
	return secrets, nil
}

// readSecret reads a file without the end of its last line.
func readSecret(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxSecretFile))
	return strings.TrimRight(string(data), "\r\n"), err
}

func (a *app) newNetwork() *cobra.Command {
	cmd := group("network", "See and set what sandboxes reach", `See and set what sandboxes reach. Whether one has a network is fixed when it is
made; the rules may be replaced while it runs.`,
		`  sandpit network show work
  sandpit network set work --allow '*.python.org:443'
  sandpit network log -f work
  sandpit network test work pypi.org:443`)
	cmd.AddCommand(a.newNetworkShow(), a.newNetworkSet(), a.newNetworkLog(), a.newNetworkTest())
	return cmd
}

func (a *app) newNetworkShow() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "show [flags] SANDBOX",
		Short: "Show what a sandbox may reach, and how much it did",
		Long: `Show what a sandbox may reach, and how much it did. Secrets that headers refer to are
never shown.`,
		Example:           "  sandpit network show work",
		Args:              wantArgs(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := find(ctx, c, args[0])
			if err != nil {
				return err
			}
			n, err := c.Networks.Get(ctx, id)
			if err != nil {
				return err
			}
			return a.show(o, networkListing(n))
		}),
	}
	o.add(cmd, "")
	return cmd
}

func networkListing(n api.Network) listing {
	l := listing{document: n, rows: [][]string{{"WHAT", "VALUE"}}}
	add := func(what, value string) { l.rows = append(l.rows, []string{what, value}) }
	if !n.Policy.Online {
		add("network", "offline")
		return l
	}
	add("network", "online")
	for _, rule := range n.Policy.Allow {
		add("allow", rule)
	}
	for _, rule := range n.Policy.Deny {
		add("deny", rule)
	}
	for _, h := range n.Policy.Headers {
		add("header", h.Host+":"+h.Name+"="+h.Value)
	}
	limits := n.Policy.Limits
	for _, f := range []struct {
		what  string
		value int64
		show  func(int64) string
	}{
		{"receive", limits.Receive, perSecond},
		{"send", limits.Send, perSecond},
		{"connections", int64(limits.Connections), count},
		{"connection rate", int64(limits.ConnectionRate), func(n int64) string { return count(n) + "/s" }},
	} {
		if f.value > 0 {
			add(f.what, "at most "+f.show(f.value))
		}
	}
	add("received", size(n.Stats.Received))
	add("sent", size(n.Stats.Sent))
	add("open", strconv.Itoa(n.Stats.Connections))
	add("allowed", count(n.Stats.Allowed))
	add("denied", count(n.Stats.Denied))
	return l
}

func perSecond(n int64) string { return size(n) + "/s" }
func count(n int64) string     { return strconv.FormatInt(n, 10) }

func (a *app) newNetworkSet() *cobra.Command {
	var o output
	var n networkFlags
	cmd := &cobra.Command{
		Use:   "set [flags] SANDBOX",
		Short: "Replace what a sandbox may reach while it runs",
		Long: `Replace what a sandbox may reach while it runs. Connections that are forbidden now are
closed, all others go on. What no flag is given for stays as it is; an empty value, as
in --allow '' or --connections 0, takes away all of its kind. Secrets are added to those
that are known.`,
		Example: `  sandpit network set work --allow '*.python.org:443' --allow '*.pythonhosted.org:443'
  sandpit network set work --header 'api.example.org:Authorization=Bearer ${TOKEN}' --secret TOKEN
  sandpit network set work --allow '' --deny 203.0.113.0/24`,
		Args:              wantArgs(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
	}
	cmd.RunE = a.verb(func(ctx context.Context, c *client.Client, args []string) error {
		given, err := n.policy(true)
		if err != nil {
			return err
		}
		secrets, err := a.parseSecrets(n.secrets)
		if err != nil {
			return err
		}
		id, err := find(ctx, c, args[0])
		if err != nil {
			return err
		}
		old, err := c.Networks.Get(ctx, id)
		if err != nil {
			return err
		}
		p := changed(old.Policy, given, cmd.Flags().Changed)
		set, err := c.Networks.Set(ctx, id, api.SetNetwork{
			Allow: p.Allow, Deny: p.Deny, Headers: p.Headers, Limits: p.Limits, Secrets: secrets,
		})
		if err != nil {
			return err
		}
		return a.show(o, networkListing(set))
	})
	o.add(cmd, "")
	n.add(cmd.Flags())
	return cmd
}

// changed is the old policy with everything of which a flag was given.
func changed(old, given sandpit.NetworkPolicy, flag func(name string) bool) sandpit.NetworkPolicy {
	rules := func(name string, old, given []string) []string {
		if !flag(name) {
			return old
		}
		return slices.DeleteFunc(given, func(rule string) bool { return rule == "" })
	}
	p := old
	p.Allow, p.Deny = rules("allow", old.Allow, given.Allow), rules("deny", old.Deny, given.Deny)
	if flag("header") {
		p.Headers = given.Headers
	}
	if flag("receive") {
		p.Limits.Receive = given.Limits.Receive
	}
	if flag("send") {
		p.Limits.Send = given.Limits.Send
	}
	if flag("connections") {
		p.Limits.Connections = given.Limits.Connections
	}
	if flag("connection-rate") {
		p.Limits.ConnectionRate = given.Limits.ConnectionRate
	}
	return p
}

func (a *app) newNetworkLog() *cobra.Command {
	var o output
	var follow bool
	var limit int
	cmd := &cobra.Command{
		Use:   "log [flags] SANDBOX",
		Short: "Show what a sandbox tried to reach, and what was decided",
		Long: `Show what a sandbox tried to reach, and what was decided by which rule. Equal decisions
are one line with a count. With -f, each is told again when it is made again, as a line
of JSON with -o json.`,
		Example: `  sandpit network log work
  sandpit network log -f -o json work | jq 'select(.allowed | not)'`,
		Args:              wantArgs(1, 1, "the name of a sandbox"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := find(ctx, c, args[0])
			if err != nil {
				return err
			}
			list, err := c.Networks.Log(ctx, id, 0, limit)
			if err != nil {
				return err
			}
			if follow {
				return a.followNetwork(ctx, c, id, list, o)
			}
			return a.show(o, decisionListing(list))
		}),
	}
	o.add(cmd, "")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on as things happen")
	cmd.Flags().IntVar(&limit, "limit", 100, "the last `number` of decisions")
	return cmd
}

func (a *app) followNetwork(ctx context.Context, c *client.Client, id sandpit.ID, list []sandpit.NetworkDecision, o output) error {
	enc := json.NewEncoder(a.Out)
	tell := func(d sandpit.NetworkDecision) error {
		if o.json() {
			return enc.Encode(d)
		}
		_, err := fmt.Fprintln(a.Out, strings.Join(decisionRow(d), "  "))
		return err
	}
	var after int64
	for _, d := range list {
		if err := tell(d); err != nil {
			return err
		}
		after = max(after, d.Seq)
	}
	return c.Networks.FollowLog(ctx, id, after, tell)
}

func decisionListing(list []sandpit.NetworkDecision) listing {
	if list == nil {
		list = []sandpit.NetworkDecision{}
	}
	l := listing{document: list, rows: [][]string{{"TIME", "COUNT", "DECISION", "PROTOCOL", "ADDRESS", "NAME", "REASON"}}}
	for _, d := range list {
		l.rows = append(l.rows, decisionRow(d))
	}
	return l
}

func decisionRow(d sandpit.NetworkDecision) []string {
	decision := "denied"
	if d.Allowed {
		decision = "allowed"
	}
	return []string{
		d.At.Local().Format(time.DateTime), count(d.Count), decision, safe(d.Protocol), safe(orElse(d.Address, "-")), safe(orElse(d.Name, "-")), safe(d.Reason),
	}
}

func (a *app) newNetworkTest() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "test [flags] SANDBOX HOST:PORT",
		Short: "Find out whether a sandbox may reach something, and by which rule",
		Long: `Find out whether a sandbox may reach something, and by which rule. Nothing is connected;
a name is asked for, and each of its addresses is one line. The exit status is 1 if none
may be reached.`,
		Example: `  sandpit network test work pypi.org:443
  sandpit network test work 169.254.169.254:80`,
		Args:              wantArgs(2, 2, "the name of a sandbox, and HOST:PORT"),
		ValidArgsFunction: a.completeSandboxes(1),
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			id, err := find(ctx, c, args[0])
			if err != nil {
				return err
			}
			list, err := c.Networks.Test(ctx, id, args[1])
			if err != nil {
				return err
			}
			if err := a.show(o, decisionListing(list)); err != nil {
				return err
			}
			if !slices.ContainsFunc(list, func(d sandpit.NetworkDecision) bool { return d.Allowed }) {
				return exitStatus(statusNo)
			}
			return nil
		}),
	}
	o.add(cmd, "")
	return cmd
}

// newSecrets are those of a new sandbox. What headers refer to never enters it; the others
// are for its programs.
type newSecrets struct{ network, programs map[string]string }

func (a *app) newSecrets(n networkFlags) (newSecrets, error) {
	s := newSecrets{network: make(map[string]string), programs: make(map[string]string)}
	for _, text := range n.secrets {
		name, value, plain := strings.Cut(text, "=")
		one := map[string]string{name: value}
		if !plain || name == "" || strings.HasPrefix(value, "@") {
			var err error
			if one, err = a.parseSecrets([]string{text}); err != nil {
				return s, err
			}
		}
		if slices.ContainsFunc(n.headers, func(h string) bool { return strings.Contains(h, "${"+name+"}") }) {
			maps.Copy(s.network, one)
		} else {
			maps.Copy(s.programs, one)
		}
	}
	return s, nil
}

// giveSecrets gives them to a new sandbox of this machine's own.
func (a *app) giveSecrets(ctx context.Context, n networkFlags, box sandpit.Instance) error {
	secrets, err := a.newSecrets(n)
	if err != nil {
		return err
	}
	if len(secrets.programs) > 0 {
		keeper, ok := sandpit.As[sandpit.Secreter](box.Guest())
		if !ok {
			return sandpit.Errorf(sandpit.Unsupported, "--secret: this sandbox's guest takes none")
		}
		if err := keeper.SetSecrets(ctx, secrets.programs); err != nil {
			return err
		}
	}
	if len(secrets.network) == 0 {
		return nil
	}
	keeper, ok := sandpit.As[sandpit.NetworkSecreter](box)
	if !ok {
		return sandpit.Errorf(sandpit.Unsupported, "--secret: this sandbox's network sets no headers")
	}
	return keeper.SetNetworkSecrets(ctx, secrets.network)
}
