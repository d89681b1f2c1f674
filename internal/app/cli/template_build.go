package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
	"github.com/sandpit-dev/sandpit/internal/build/template"
)

type templateBuildCommand struct {
	name    string
	secrets []string
	args    []string
	fresh   bool
	network bool
	json    bool
	running startFlags
}

func newTemplateBuild(a *app) *cobra.Command {
	var o templateBuildCommand
	cmd := &cobra.Command{
		Use:   "build [flags] [DIRECTORY|FILE|builtin:NAME]",
		Short: "Build a template",
		Long: `Build a template from the sandpit.toml or Dockerfile of a directory (default: the current
one), or from such a file. "builtin:NAME" is a file that is part of this program, see
"sandpit template ls --builtin".

Commands run in sandboxes, without a network unless the file or --network gives them one.
A secret is only in the environment of commands that name it. It is not shown, and a step
that writes it to a file fails.`,
		Example: `  sandpit template build -t tools
  sandpit template build -t tools --network ./Dockerfile
  sandpit template build builtin:base
  sandpit template build -t tools --secret TOKEN --secret KEY=key.txt .`,
		Args: wantArgs(0, 1, ""),
		RunE: func(cmd *cobra.Command, args []string) error { return o.buildTemplate(a, cmd, args) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.name, "tag", "t", "", "`NAME` of the template (default: the name in the file)")
	f.StringArrayVar(&o.secrets, "secret", nil, "pass the secret `NAME` to steps, from this environment, or NAME=FILE from a file")
	f.StringArrayVar(&o.args, "build-arg", nil, "`NAME=VALUE` for an ARG of a Dockerfile")
	f.BoolVar(&o.fresh, "no-cache", false, "repeat every step")
	f.BoolVar(&o.network, "network", false, "let steps reach the internet, but neither this machine nor private networks")
	f.BoolVar(&o.json, "json", false, "print JSON")
	o.running.addFlags(f)
	return cmd
}

func (o *templateBuildCommand) buildTemplate(a *app, cmd *cobra.Command, args []string) error {
	given, err := o.parseBuildArgs()
	if err != nil {
		return err
	}
	t, dir, err := daemon.ReadTemplate(directoryArgument(args), given)
	if err != nil {
		return err
	}
	t.Build.Network.Online = t.Build.Network.Online || o.network
	o.running.applyTo(&t)
	if err := t.Validate(); err != nil {
		return err
	}
	return a.withTemplates(cmd, func(ctx context.Context, c *client.Client) error {
		return o.buildRemote(ctx, a, c, t, dir)
	}, func() error { return o.buildLocal(a, cmd, t, dir) })
}

// buildLocal builds a template in this machine's cache.
func (o *templateBuildCommand) buildLocal(a *app, cmd *cobra.Command, t template.Template, dir string) (err error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	if t.Start != "" {
		fmt.Fprintln(a.Err, "sandpit: the start command runs only in sandboxes of a server; build the template with --server for that")
	}
	secrets, err := readBuildSecrets(a, o.secrets)
	if err != nil {
		return err
	}
	progress, clear := newProgress(a.Err, "Fetching "+string(t.From))
	defer clear()
	local, err := daemon.OpenLocal(cmd.Context(), cfg, daemon.Listeners{Progress: progress, Notice: a.newNoticeOnce(cfg)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, local.Close()) }()
	e, err := local.BuildTemplate(cmd.Context(), t, daemon.TemplateBuild{
		Name: o.name, Dir: dir, Secrets: secrets, Fresh: o.fresh, Output: a.Err,
		Prepare: func(what string) {
			clear()
			fmt.Fprintln(a.Err, what)
		},
		Begin: func(number, total int, s template.Step) {
			clear()
			fmt.Fprintf(a.Err, "[%d/%d] %s\n", number, total, toPrintableLine(s.String()))
		},
		Ran: func(_ int, took time.Duration) { fmt.Fprintf(a.Err, "took %s\n", took.Round(10*time.Millisecond)) },
	})
	if err != nil {
		return a.signalOr(cmd.Context(), err)
	}
	if o.json {
		return printJSON(a.Out, e)
	}
	_, err = fmt.Fprintln(a.Out, e.Name)
	return err
}

func (o templateBuildCommand) parseBuildArgs() (map[string]string, error) {
	given := map[string]string{}
	for _, arg := range o.args {
		name, value, found := strings.Cut(arg, "=")
		if !found || name == "" {
			return nil, sandpit.Errorf(sandpit.Invalid, "--build-arg %q: want NAME=VALUE", arg)
		}
		given[name] = value
	}
	return given, nil
}

// buildRemote lets a server build a template, and prints its log.
func (o *templateBuildCommand) buildRemote(ctx context.Context, a *app, c *client.Client, t sandpit.Recipe, dir string) error {
	secrets, err := readBuildSecrets(a, o.secrets)
	if err != nil {
		return err
	}
	name, tag, _ := strings.Cut(strings.TrimPrefix(cmp.Or(o.name, t.Name), sandpit.TemplatePrefix), ":")
	if name == "" {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "the template has no name"), "add -t NAME")
	}
	r := client.TemplateRequest{Name: name, Recipe: t, Secrets: secrets, Fresh: o.fresh}
	if tag != "" {
		r.Tags = []string{tag}
	}
	if template.Copies(t) {
		r.Files = func(to io.Writer) error { return template.WriteContext(ctx, t, dir, to) }
	}
	_, b, err := c.Templates.Build(ctx, r)
	if err != nil {
		return err
	}
	if b, err = c.Builds.Wait(ctx, b.ID, func(l sandpit.BuildLog) { fmt.Fprintln(a.Err, escapeText(l.Text)) }); err != nil {
		return err
	}
	if b.Status != sandpit.BuildReady {
		return sandpit.Errorf(sandpit.Invalid, "build %s: %s", b.ID, b.Reason.Message)
	}
	if o.json {
		return printJSON(a.Out, b)
	}
	ref := sandpit.TemplatePrefix + name
	if tag != "" {
		ref += ":" + tag
	}
	_, err = fmt.Fprintln(a.Out, ref)
	return err
}

func directoryArgument(args []string) string {
	if len(args) == 0 {
		return "."
	}
	return args[0]
}

// startFlags describe the program that sandboxes of a template start with.
type startFlags struct {
	start, command, url string
	port                int
	timeout             time.Duration
}

func (s *startFlags) addFlags(f *pflag.FlagSet) {
	f.StringVar(&s.start, "start", "", "`COMMAND` that runs in every sandbox of the template from the start, with --server")
	f.IntVar(&s.port, "ready-port", 0, "`PORT` that --start listens on when it is ready")
	f.StringVar(&s.url, "ready-url", "", "`URL` such as http://localhost:8000/ that responds when --start is ready")
	f.StringVar(&s.command, "ready-cmd", "", "`COMMAND` that succeeds when --start is ready")
	f.DurationVar(&s.timeout, "ready-timeout", 0, "`time` that --start may take until it is ready (default 1m)")
}

// applyTo sets the values of flags in a recipe.
func (s startFlags) applyTo(r *sandpit.Recipe) {
	r.Start = cmp.Or(s.start, r.Start)
	if s.port != 0 || s.url != "" || s.command != "" {
		r.Ready.Port, r.Ready.URL, r.Ready.Command = s.port, s.url, s.command
	}
	if s.timeout != 0 {
		r.Ready.Timeout = s.timeout.Seconds()
	}
}
