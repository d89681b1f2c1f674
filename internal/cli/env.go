package cli

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/daemon"
)

// The shells that assignments are written for.
const (
	shellSh   = "sh"
	shellFish = "fish"
)

// envOptions are the flags of env e2b.
type envOptions struct {
	json         bool
	shell        string
	owner, until string
	domain       string
}

func (a *app) newEnv() *cobra.Command {
	cmd := group("env", "Print the variables that programs written for others need", "Print the variables that programs written for others need, to use this server.",
		"  eval \"$(sandpit env e2b --owner me)\"")
	cmd.AddCommand(a.newEnvE2B())
	return cmd
}

func (a *app) newEnvE2B() *cobra.Command {
	var o envOptions
	cmd := &cobra.Command{
		Use:   "e2b [flags]",
		Short: "Print the variables that make a program that uses E2B's SDK use this server",
		Long: `Print the variables that make a program that uses E2B's SDK, or E2B's command line,
use this server. The key is that of SANDPIT_API_KEY or the configuration; --owner makes
a new one, which wants a key of an administrator, or the server's own socket.

E2B_DEBUG is unset, since its mere presence has the SDK look elsewhere.

With --domain the SDK finds everything by host names below the domain, which must lead to
the server, over HTTPS; otherwise one address is all that it needs. See docs/from-e2b.md.`,
		Example: `  eval "$(sandpit env e2b --owner me)"
  sandpit env e2b --shell fish | source
  sandpit env e2b --json > .e2b.json
  sandpit env e2b --domain sandpit.example.org`,
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, _ []string) error {
			return a.printEnv(ctx, c, o)
		}),
	}
	o.shell = shellSh
	addChoice(cmd, &o.shell, "shell", "`NAME` of the shell that reads it: sh or fish (default sh)", shellSh, shellFish)
	f := cmd.Flags()
	f.BoolVar(&o.json, "json", false, "print one JSON object, in which what is to be unset is null")
	f.StringVar(&o.owner, "owner", "", "make a key that reaches the sandboxes of `NAME`")
	f.StringVar(&o.until, "ttl", "", "`time` that the new key is good for, such as 30d (default for ever)")
	f.StringVar(&o.domain, "domain", "", "`NAME` of the server, with its port if that is not 443; what is below it leads to the server too")
	return cmd
}

// variable is one variable of an environment; without a value it is to be unset.
type variable struct {
	name  string
	value *string
}

func (a *app) printEnv(ctx context.Context, c *client.Client, o envOptions) error {
	ttl, err := parseSpan("--ttl", o.until)
	if err != nil {
		return err
	}
	cfg, err := a.loadConfig(a.serverOverride()...)
	if err != nil {
		return err
	}
	vars, err := whereE2B(ctx, cfg, o.domain)
	if err != nil {
		return err
	}
	key := cfg.APIKey.Reveal()
	if o.owner != "" {
		made, err := c.CreateKey(ctx, o.owner, "E2B", max(0, ttl), false)
		if err != nil {
			return err
		}
		key = made.Secret
	}
	if key == "" {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "E2B's SDK shows a key, and there is none"), "add --owner NAME to make one, or set SANDPIT_API_KEY")
	}
	vars = append(vars, variable{"E2B_API_KEY", &key}, variable{"E2B_DEBUG", nil})
	return a.showEnv(o, vars)
}

// whereE2B are the variables that tell where the server is.
func whereE2B(ctx context.Context, cfg config.Config, domain string) (vars []variable, err error) {
	url := serverURL(cfg)
	if !strings.HasPrefix(url, "http") { // a socket, which the SDK cannot use
		if url, err = daemon.ListenURL(cfg); err != nil {
			return nil, sandpit.WithHint(err, "name the server's address: sandpit --server http://HOST:PORT env e2b")
		}
	}
	ca := cfg.CA
	if file := daemon.AuthorityFile(cfg); ca == "" && strings.HasPrefix(url, "https:") && isFile(file) {
		ca = file
	}
	if domain == "" {
		if err := isServer(ctx, url, ca); err != nil {
			return nil, err
		}
		vars = []variable{{"E2B_API_URL", &url}, {"E2B_SANDBOX_URL", &url}}
	} else {
		vars = []variable{{"E2B_DOMAIN", &domain}, {"E2B_API_URL", nil}, {"E2B_SANDBOX_URL", nil}}
	}
	if ca != "" {
		if ca, err = filepath.Abs(ca); err != nil {
			return nil, err
		}
		vars = append(vars, variable{"NODE_EXTRA_CA_CERTS", &ca}, variable{"SSL_CERT_FILE", &ca})
	}
	return vars, nil
}

// isServer refuses an address at which there is no server.
func isServer(ctx context.Context, url, ca string) error {
	c, err := client.New(client.Options{URL: url, CAFile: ca, UserAgent: "sandpit-cli"})
	if err != nil {
		return err
	}
	defer c.Close()
	if _, err = c.Version(ctx); err != nil {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "there is no server at %s: %w", url, err),
			"name the server's address: sandpit --server http://HOST:PORT env e2b")
	}
	return nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// showEnv prints variables for who wants to have them.
func (a *app) showEnv(o envOptions, vars []variable) error {
	slices.SortStableFunc(vars, func(a, b variable) int { return cmp.Compare(a.name, b.name) })
	if o.json {
		all := make(map[string]*string, len(vars))
		for _, v := range vars {
			all[v.name] = v.value
		}
		return printJSON(a.Out, all)
	}
	for _, v := range vars {
		if _, err := fmt.Fprintln(a.Out, v.line(o.shell)); err != nil {
			return err
		}
	}
	return nil
}

// line is what a shell reads.
func (v variable) line(shell string) string {
	switch {
	case v.value == nil && shell == shellFish:
		return "set -e " + v.name
	case v.value == nil:
		return "unset " + v.name
	case shell == shellFish:
		return "set -gx " + v.name + " '" + strings.NewReplacer(`\`, `\\`, `'`, `\'`).Replace(*v.value) + "'"
	}
	return "export " + v.name + "='" + strings.ReplaceAll(*v.value, `'`, `'\''`) + "'"
}
