package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

// The shells that assignments are written for.
const (
	shellSh   = "sh"
	shellFish = "fish"
)

// envService is a service whose programs use a server instead.
type envService struct {
	name    string
	command string // of sandpit env
	keyFile string // below the state directory
}

var (
	e2bService     = envService{"E2B", "e2b", "e2b.key"}
	daytonaService = envService{"Daytona", "daytona", "daytona.key"}
)

// envOptions are the options of every subcommand of sandpit env.
type envOptions struct {
	json         bool
	shell        string
	owner, until string
}

// addFlags adds the options to a command.
func (o *envOptions) addFlags(cmd *cobra.Command) {
	o.shell = shellSh
	addChoice(cmd, &o.shell, "shell", "`NAME` of the shell that reads the output: sh or fish", shellSh, shellFish)
	f := cmd.Flags()
	f.BoolVar(&o.json, "json", false, "print one JSON object, in which variables to unset are null")
	f.StringVar(&o.owner, "owner", "", "create a key for the sandboxes of the owner `NAME`")
	f.StringVar(&o.until, "ttl", "", "`time` that the new key is valid, such as 30d (default unlimited)")
}

// envCommand has the options of sandpit env e2b.
type envCommand struct {
	envOptions

	domain       string
	templates    []string
	templatesSet bool
}

func newEnv(a *app) *cobra.Command {
	cmd := newGroup("env", "Print environment variables for other programs", `Print the environment variables that make programs for other services use this server.`,
		"  eval \"$(sandpit env e2b)\"")
	cmd.AddCommand(newEnvE2B(a), newEnvDaytona(a))
	return cmd
}

func newEnvE2B(a *app) *cobra.Command {
	var o envCommand
	cmd := &cobra.Command{
		Use:   "e2b [flags]",
		Short: "Print the environment variables that make the E2B SDK use this server",
		Long: `Print the environment variables that make a program with the E2B SDK, or the E2B command
line, use a server: the one that is configured, otherwise your own server, which reports its
address. The API key is SANDPIT_API_KEY or that of the configuration; your own server
creates one otherwise, which is reused. --owner creates a new key for another owner, which
needs an administrator's key or the server's own socket.

With your own server, the templates base and code-interpreter-v1 are built unless they
exist, which takes some minutes once; --template selects others, and "none" selects none.
The variables are printed before that.

E2B_DEBUG is unset, because the SDK uses other addresses if it is set to anything.

With --domain the SDK uses host names below the domain, which must lead to the server, over
HTTPS; otherwise it uses one address. See docs/from-e2b.md.`,
		Example: `  eval "$(sandpit env e2b)"
  sandpit env e2b --template none --shell fish | source
  sandpit env e2b --owner me --json > .e2b.json
  sandpit env e2b --domain sandpit.example.org`,
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		PreRun:            func(cmd *cobra.Command, _ []string) { o.templatesSet = cmd.Flags().Changed("template") },
		RunE:              a.withClient(o.run),
	}
	o.addFlags(cmd)
	f := cmd.Flags()
	f.StringArrayVar(&o.templates, "template", nil, "built-in template `NAME` to build, or none (default base and code-interpreter-v1 with your own server)")
	f.StringVar(&o.domain, "domain", "", "domain `NAME` of the server, with the port unless that is 443; host names below it must lead to the server too")
	return cmd
}

// variable is an environment variable; without a value it is to be unset.
type variable struct {
	name  string
	value *string
}

func (o *envCommand) run(ctx context.Context, a *app, c *client.Client, _ []string) error {
	cfg, err := a.loadConfig(a.serverOverride()...)
	if err != nil {
		return err
	}
	vars, err := serverVariables(ctx, c, cfg, o.domain)
	if err != nil {
		return err
	}
	key, err := o.findAPIKey(ctx, c, cfg, e2bService)
	if err != nil {
		return err
	}
	vars = append(vars, variable{"E2B_API_KEY", &key}, variable{"E2B_DEBUG", nil})
	if err := o.showVariables(a, vars); err != nil {
		return err
	}
	return prepareBuiltins(ctx, a, c, o.builtinTemplates(cfg), o.templatesSet)
}

// builtinTemplates returns the built-in templates to build. By default these are the ones that
// the two E2B SDKs use, on the user's own server.
func (o *envCommand) builtinTemplates(cfg config.Config) []string {
	switch {
	case slices.Equal(o.templates, []string{config.None}):
		return nil
	case o.templatesSet:
		return o.templates
	case cfg.URL != "" || o.owner != "" || o.domain != "":
		return nil
	}
	return []string{"base", "code-interpreter-v1"}
}

// findAPIKey returns the API key for a service's SDK: a new one for an owner, else the configured
// one, else one of this user's own server.
func (o *envOptions) findAPIKey(ctx context.Context, c *client.Client, cfg config.Config, service envService) (string, error) {
	ttl, err := parseDurationOrNever("--ttl", o.until)
	if err != nil {
		return "", err
	}
	ttl = max(0, ttl)
	if o.owner != "" {
		made, err := c.Keys.Create(ctx, o.owner, service.name, ttl, false)
		return made.Secret, err
	}
	if key := cfg.APIKey.Reveal(); key != "" {
		return key, nil
	}
	file := filepath.Join(cfg.StateDir, service.keyFile)
	if key := readSavedKey(ctx, cfg, file); key != "" && ttl == 0 {
		return key, nil
	}
	made, err := c.Keys.Create(ctx, daemon.LocalOwner, service.name, ttl, false)
	if code := sandpit.CodeOf(err); code == sandpit.Unauthenticated || code == sandpit.PermissionDenied {
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "the %s SDK needs an API key, and none is configured", service.name),
			"set SANDPIT_API_KEY, or add --owner NAME to create a key; as the server's user on its machine, leave --server and SANDPIT_URL out")
	}
	if err != nil {
		return "", err
	}
	if ttl == 0 && cfg.URL == "" {
		// A key that cannot be saved is created again next time.
		_ = saveKey(file, made.Secret)
	}
	return made.Secret, nil
}

// maxKeyFile bounds the file of a key, in bytes.
const maxKeyFile = 1 << 10

// readSavedKey returns the key that saveKey saved, if this user's own server accepts it,
// otherwise "".
func readSavedKey(ctx context.Context, cfg config.Config, file string) string {
	if cfg.URL != "" {
		return ""
	}
	info, err := os.Lstat(file)
	if err != nil || !info.Mode().IsRegular() || info.Size() > maxKeyFile {
		return ""
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	key := strings.TrimSpace(string(text))
	// A socket needs no key, but rejects a wrong one.
	c, err := client.New(client.Options{URL: cfg.ServerURL(), Key: key, UserAgent: "sandpit-cli"})
	if err != nil {
		return ""
	}
	defer c.Close()
	if _, err := c.Sandboxes.List(ctx, client.Filter{Limit: 1}); err != nil {
		return ""
	}
	return key
}

// saveKey writes a key to a file that only this user can read.
func saveKey(file, key string) error {
	if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(f, key)
	return errors.Join(err, f.Close())
}

// serverVariables returns the variables with the server's address and certificate.
func serverVariables(ctx context.Context, c *client.Client, cfg config.Config, domain string) (vars []variable, err error) {
	url := ""
	if domain == "" || cfg.URL == "" {
		if url, err = httpURL(ctx, c, cfg, e2bService); err != nil {
			return nil, err
		}
	}
	if domain == "" {
		vars = []variable{{"E2B_API_URL", &url}, {"E2B_SANDBOX_URL", &url}}
	} else {
		vars = []variable{{"E2B_DOMAIN", &domain}, {"E2B_API_URL", nil}, {"E2B_SANDBOX_URL", nil}}
	}
	certificates, err := certificateVariables(cfg, cmp.Or(url, c.URL()))
	return append(vars, certificates...), err
}

// certificateVariables returns the variables with the certificate of a server's own authority, if
// it has one.
func certificateVariables(cfg config.Config, url string) ([]variable, error) {
	ca := cfg.CA
	if file := daemon.AuthorityFile(cfg); ca == "" && strings.HasPrefix(url, "https:") && isFile(file) {
		ca = file
	}
	if ca == "" {
		return nil, nil
	}
	ca, err := filepath.Abs(ca)
	return []variable{{"NODE_EXTRA_CA_CERTS", &ca}, {"SSL_CERT_FILE", &ca}}, err
}

// httpURL returns the HTTP address of a server that responds. A server reached by its socket,
// which SDKs cannot use, reports its address.
func httpURL(ctx context.Context, c *client.Client, cfg config.Config, service envService) (string, error) {
	v, err := c.Version(ctx)
	if err != nil {
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.CodeOf(err), "no server at %s: %w", c.URL(), err),
			"start one: sandpit serve; or set its address: sandpit --server http://HOST:PORT env "+service.command)
	}
	if strings.HasPrefix(c.URL(), "http") {
		return c.URL(), nil
	}
	if v.URL != "" {
		return v.URL, nil
	}
	url, err := cfg.ListenURL() // an older server
	if err != nil {
		err = sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "the server listens at no TCP address, which the %s SDK needs", service.name),
			"start it with server.listen, such as SANDPIT_SERVER_LISTEN=127.0.0.1:8090")
	}
	return url, err
}

// builtinPollTime is how often the state of a build is requested, and builtinReportTime how often it
// is shown while it stays the same.
const (
	builtinPollTime   = time.Second
	builtinReportTime = 15 * time.Second
)

// prepareBuiltins waits until a server has built templates, and shows the progress. A template
// that cannot be built is an error only if it was requested by name; otherwise programs report it
// when they use the template.
func prepareBuiltins(ctx context.Context, a *app, c *client.Client, names []string, requested bool) error {
	var errs []error
	begin, shown, last := time.Now(), time.Time{}, ""
	for waiting := names; len(waiting) > 0; {
		var left, words []string
		for _, name := range waiting {
			b, err := c.Templates.PrepareBuiltin(ctx, name)
			switch code := sandpit.CodeOf(err); {
			case ctx.Err() != nil:
				return a.signalOr(ctx, ctx.Err())
			case err != nil && !requested && (code == sandpit.NotFound || code == sandpit.Unsupported):
				continue // the server has no such templates
			case err != nil:
				errs = append(errs, fmt.Errorf("template %s: %w", name, err))
				continue
			case b.Status == sandpit.BuildFailed:
				errs = append(errs, sandpit.WithHint(
					sandpit.Errorf(sandpit.Unavailable, "build template %s: %s", name, cmp.Or(b.Reason, "see its log")),
					"the other variables and templates are valid; try again later, or: sandpit template build builtin:"+name))
				continue
			case b.Status == sandpit.BuildReady:
				continue
			}
			left = append(left, name)
			words = append(words, name+": "+cmp.Or(b.Progress, "waiting"))
		}
		waiting = left
		if len(waiting) == 0 {
			break
		}
		if text := strings.Join(words, "; "); text != last || time.Since(shown) > builtinReportTime {
			fmt.Fprintf(a.Err, "sandpit: building templates once (%v so far): %s\n", time.Since(begin).Round(time.Second), toPrintableLine(text))
			shown, last = time.Now(), text
		}
		select {
		case <-time.After(builtinPollTime):
		case <-ctx.Done():
			return a.signalOr(ctx, ctx.Err())
		}
	}
	if requested {
		return errors.Join(errs...)
	}
	for _, err := range errs {
		fmt.Fprintf(a.Err, "sandpit: %s\n", escapeLines(err.Error()))
	}
	return nil
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// showVariables prints variables as assignments of a shell or as JSON.
func (o *envOptions) showVariables(a *app, vars []variable) error {
	slices.SortStableFunc(vars, func(a, b variable) int { return cmp.Compare(a.name, b.name) })
	if o.json {
		all := make(map[string]*string, len(vars))
		for _, v := range vars {
			all[v.name] = v.value
		}
		return printJSON(a.Out, all)
	}
	for _, v := range vars {
		if _, err := fmt.Fprintln(a.Out, v.shellLine(o.shell)); err != nil {
			return err
		}
	}
	return nil
}

// shellLine returns the assignment for a shell.
func (v variable) shellLine(shell string) string {
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
