package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

// startFlags say which program a template has running.
type startFlags struct {
	start, command, url string
	port                int
	timeout             time.Duration
}

func (s *startFlags) add(f *pflag.FlagSet) {
	f.StringVar(&s.start, "start", "", "`COMMAND` that runs in every sandbox of the template from the beginning, with --server")
	f.IntVar(&s.port, "ready-port", 0, "`PORT` that --start listens on when it is ready")
	f.StringVar(&s.url, "ready-url", "", "`URL` such as http://localhost:8000/ that is answered when --start is ready")
	f.StringVar(&s.command, "ready-cmd", "", "`COMMAND` that succeeds when --start is ready")
	f.DurationVar(&s.timeout, "ready-timeout", 0, "`time` that --start may take until it is ready (default 1m)")
}

// apply puts what the flags say before what the file says.
func (s startFlags) apply(r *sandpit.Recipe) {
	r.Start = cmp.Or(s.start, r.Start)
	if s.port != 0 || s.url != "" || s.command != "" {
		r.Ready.Port, r.Ready.URL, r.Ready.Command = s.port, s.url, s.command
	}
	if s.timeout != 0 {
		r.Ready.Timeout = s.timeout.Seconds()
	}
}

// usesServer reports whether a command that can do without a server uses one: the one that
// is named, else this user's own if it runs.
func usesServer(cfg config.Config) bool {
	if namesServer(cfg) {
		return true
	}
	_, runs := cfg.LocalServer()
	return cfg.URL == "" && runs
}

// withTemplates runs one of two: remote with the server if there is one, else local.
func (a *app) withTemplates(cmd *cobra.Command, remote func(ctx context.Context, c *client.Client) error, local func() error) error {
	cfg, err := a.loadConfig(a.serverOverride()...)
	if err != nil {
		return err
	}
	if !usesServer(cfg) {
		return local()
	}
	c, err := dialConfigured(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	return a.verbFailed(cmd.Context(), remote(cmd.Context(), c))
}

// buildRemote has a server build a template, and shows what it tells.
func (a *app) buildRemote(ctx context.Context, c *client.Client, o templateOptions, t sandpit.Recipe, dir string) error {
	secrets, err := a.buildSecrets(o.secrets)
	if err != nil {
		return err
	}
	name, tag, _ := strings.Cut(strings.TrimPrefix(cmp.Or(o.name, t.Name), daemon.TemplatePrefix), ":")
	if name == "" {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "the template has no name"), "add -t NAME")
	}
	r := client.TemplateRequest{Name: name, Recipe: t, Secrets: secrets, Fresh: o.fresh}
	if tag != "" {
		r.Tags = []string{tag}
	}
	if daemon.CopiesFiles(t) {
		r.Files = func(to io.Writer) error { return daemon.WriteContext(ctx, t, dir, to) }
	}
	_, b, err := c.Templates.Build(ctx, r)
	if err != nil {
		return err
	}
	if b, err = c.Builds.Wait(ctx, b.ID, func(l sandpit.BuildLog) { fmt.Fprintln(a.Err, safe(l.Text)) }); err != nil {
		return err
	}
	if b.Status != sandpit.BuildReady {
		return sandpit.Errorf(sandpit.Invalid, "build %s: %s", b.ID, b.Reason.Message)
	}
	if o.json {
		return printJSON(a.Out, b)
	}
	ref := daemon.TemplatePrefix + name
	if tag != "" {
		ref += ":" + tag
	}
	_, err = fmt.Fprintln(a.Out, ref)
	return err
}

// listRemote lists the templates of a server.
func (a *app) listRemote(ctx context.Context, c *client.Client, asJSON bool) error {
	list, err := c.Templates.List(ctx, "", true)
	if err != nil {
		return err
	}
	if asJSON {
		if list == nil {
			list = []sandpit.Template{}
		}
		return printJSON(a.Out, list)
	}
	slices.SortFunc(list, func(x, y sandpit.Template) int { return strings.Compare(x.Name+"\x00"+x.Owner, y.Name+"\x00"+y.Owner) })
	rows := [][]string{{"NAME", "TAGS", "OWNER", "PUBLIC", "SANDBOXES", "UPDATED"}}
	for _, t := range list {
		var tags []string
		for tag := range t.Tags {
			tags = append(tags, tag)
		}
		slices.Sort(tags)
		name := t.Name
		if t.Public && !t.Shared {
			name = t.FullName() // by which other owners find it
		}
		rows = append(rows, []string{
			name, cmp.Or(strings.Join(tags, " "), "-"), cmp.Or(t.Owner, "-"), yesNo(t.Public), strconv.FormatInt(t.Spawned, 10), t.UpdatedAt.Format(time.DateTime),
		})
	}
	return layTable(a.Out, rows, nil)
}

// shownTemplate is a template with its newest builds.
type shownTemplate struct {
	sandpit.Template

	Builds []sandpit.TemplateBuild `json:"builds,omitempty"`
}

// showRemote shows a template of a server, and its builds if it is the caller's own.
func (a *app) showRemote(ctx context.Context, c *client.Client, name string) error {
	name = strings.TrimPrefix(name, daemon.TemplatePrefix)
	t, err := c.Templates.Get(ctx, name)
	if err != nil {
		return err
	}
	builds, err := c.Builds.List(ctx, name)
	if err != nil && !errors.Is(err, sandpit.PermissionDenied) {
		return err
	}
	return printJSON(a.Out, shownTemplate{t, builds})
}

func (a *app) newTemplateTag() *cobra.Command {
	var remove bool
	cmd := &cobra.Command{
		Use:   "tag [flags] NAME[:TAG] TAG...",
		Short: "Call a build of a server's template by further tags",
		Long: `Call a build of a server's template by further tags, or, with --remove, by these no
more. A build without a tag is removed some time later.`,
		Example: `  sandpit --server https://host:8090 template tag tools:v2 stable
  sandpit template tag --remove tools v1`,
		Args:              wantArgs(2, -1, "a template and a tag"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			name := strings.TrimPrefix(args[0], daemon.TemplatePrefix)
			if !remove {
				return c.Templates.Tag(ctx, name, args[1:]...)
			}
			for _, tag := range args[1:] {
				if err := c.Templates.Untag(ctx, name, tag); err != nil {
					return err
				}
			}
			return nil
		}),
	}
	cmd.Flags().BoolVar(&remove, "remove", false, "take the tags away")
	return cmd
}

func (a *app) newTemplatePublish() *cobra.Command {
	var private bool
	cmd := &cobra.Command{
		Use:   "publish [flags] NAME",
		Short: "Let every owner create sandboxes of a server's template",
		Long: `Let every owner create sandboxes of a server's template, as template:OWNER/NAME. When an
administrator publishes their own template, template:NAME also means it, for every owner
that has no template of that name.`,
		Example:           "  sandpit template publish tools\n  sandpit template publish --private tools",
		Args:              wantArgs(1, 1, "the name of a template"),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: a.verb(func(ctx context.Context, c *client.Client, args []string) error {
			return c.Templates.SetPublic(ctx, strings.TrimPrefix(args[0], daemon.TemplatePrefix), !private)
		}),
	}
	cmd.Flags().BoolVar(&private, "private", false, "let nobody else do so any more")
	return cmd
}
