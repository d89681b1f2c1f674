package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

func (a *app) newTemplate() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "template",
		Aliases: []string{"templates"},
		Short:   "Build images in sandboxes, and list and remove them",
		Long: `Build images in sandboxes, and list and remove them.

A template is an image that is built on this machine, without Docker: from a
sandpit.toml or a Dockerfile, each step in a sandbox. A step that was done before,
from the same base and with the same files, is not done again. Sandboxes are made of it
by the name template:NAME. With --server, or SANDPIT_URL, the server builds and keeps
templates, and those can have programs running from the beginning. Without either, your
own server does so if it runs.`,
		Example: `  sandpit template build -t tools .
  sandpit run template:tools -- make
  sandpit template ls`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.newTemplateBuild(), a.newTemplateValidate(), a.newTemplateList(), a.newTemplateShow(), a.newTemplateRemove(),
		a.newTemplateTag(), a.newTemplatePublish())
	return cmd
}

type templateOptions struct {
	name    string
	secrets []string
	args    []string
	fresh   bool
	network bool
	json    bool
	running startFlags
}

func (a *app) newTemplateBuild() *cobra.Command {
	var o templateOptions
	cmd := &cobra.Command{
		Use:   "build [flags] [DIRECTORY|FILE|builtin:NAME]",
		Short: "Build a template",
		Long: `Build a template from the sandpit.toml or Dockerfile of a directory (default: this
one), or from such a file. "builtin:NAME" is a file that is part of this program, see
"sandpit template ls --builtin".

Commands run in sandboxes, without a network unless the file or --network gives them one.
A secret is in the environment of the one command that names it; it is not
shown, and a step that writes it to a file fails.`,
		Example: `  sandpit template build -t tools
  sandpit template build -t tools --network ./Dockerfile
  sandpit template build builtin:base
  sandpit template build -t tools --secret TOKEN --secret KEY=key.txt .`,
		Args: wantArgs(0, 1, ""),
		RunE: func(cmd *cobra.Command, args []string) error { return a.buildTemplate(cmd, o, args) },
	}
	f := cmd.Flags()
	f.StringVarP(&o.name, "tag", "t", "", "`NAME` of the template (default: what the file says)")
	f.StringArrayVar(&o.secrets, "secret", nil, "give steps the secret `NAME`, from this environment, or NAME=FILE from a file")
	f.StringArrayVar(&o.args, "build-arg", nil, "`NAME=VALUE` of an ARG of a Dockerfile")
	f.BoolVar(&o.fresh, "no-cache", false, "do every step again")
	f.BoolVar(&o.network, "network", false, "let steps reach the internet, but neither this machine nor private networks")
	f.BoolVar(&o.json, "json", false, "print JSON")
	o.running.add(f)
	return cmd
}

func (a *app) buildTemplate(cmd *cobra.Command, o templateOptions, args []string) error {
	given, err := o.givenArgs()
	if err != nil {
		return err
	}
	t, dir, err := daemon.ReadTemplate(pathOf(args), given)
	if err != nil {
		return err
	}
	t.Build.Network.Online = t.Build.Network.Online || o.network
	o.running.apply(&t)
	if err := t.Validate(); err != nil {
		return err
	}
	return a.withTemplates(cmd, func(ctx context.Context, c *client.Client) error {
		return a.buildRemote(ctx, c, o, t, dir)
	}, func() error { return a.buildLocal(cmd, o, t, dir) })
}

// buildLocal builds a template in this machine's cache.
func (a *app) buildLocal(cmd *cobra.Command, o templateOptions, t daemon.Template, dir string) (err error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	if t.Start != "" {
		fmt.Fprintln(a.Err, "sandpit: the start command runs in sandboxes of a server only; build the template with --server for that")
	}
	secrets, err := a.buildSecrets(o.secrets)
	if err != nil {
		return err
	}
	progress, clear := newProgress(a.Err, "Fetching "+string(t.From))
	defer clear()
	local, err := daemon.OpenLocal(cfg, daemon.Listeners{Progress: progress, Notice: a.noticeOnce(cfg)})
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
		Begin: func(number, total int, s daemon.TemplateStep) {
			clear()
			fmt.Fprintf(a.Err, "[%d/%d] %s\n", number, total, printable(s.String()))
		},
		Ran: func(_ int, took time.Duration) { fmt.Fprintf(a.Err, "took %s\n", took.Round(10*time.Millisecond)) },
	})
	if err != nil {
		return a.interrupted(cmd.Context(), err)
	}
	if o.json {
		return printJSON(a.Out, e)
	}
	_, err = fmt.Fprintln(a.Out, e.Name)
	return err
}

func pathOf(args []string) string {
	if len(args) == 0 {
		return "."
	}
	return args[0]
}

// printable is one line without what could move a terminal's cursor.
func printable(text string) string {
	const maxLength = 200
	return textlen.Shorten(strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text), maxLength)
}

func (o templateOptions) givenArgs() (map[string]string, error) {
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

// buildSecrets reads the values of secrets, which are never arguments.
func (a *app) buildSecrets(list []string) (map[string]string, error) {
	const longest = 64 << 10
	values := map[string]string{}
	for _, text := range list {
		name, file, isFile := strings.Cut(text, "=")
		value, found := lookup(a.options.Environ, name)
		if isFile {
			data, err := os.ReadFile(file)
			if err != nil {
				return nil, fmt.Errorf("--secret %s: %w", name, err)
			}
			value, found = strings.TrimSuffix(string(data), "\n"), true
		}
		if !found || value == "" || len(value) > longest {
			return nil, sandpit.Errorf(sandpit.Invalid, "--secret %s: it has no value, or more than %d bytes", name, longest)
		}
		values[name] = value
	}
	return values, nil
}

func (a *app) newTemplateValidate() *cobra.Command {
	return &cobra.Command{
		Use:   "validate [DIRECTORY|FILE]",
		Short: "Tell whether a template file is understood",
		Example: `  sandpit template validate
  sandpit template validate ./Dockerfile`,
		Args: wantArgs(0, 1, ""),
		RunE: func(_ *cobra.Command, args []string) error {
			t, _, err := daemon.ReadTemplate(pathOf(args), nil)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(a.Out, "%d steps from %s\n", len(t.Steps), t.From)
			return err
		},
	}
}

func (a *app) newTemplateList() *cobra.Command {
	var asJSON, builtin bool
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List the templates",
		Example: `  sandpit template ls
  sandpit template ls --json | jq -r '.[].name'
  sandpit template ls --builtin`,
		Args: wantArgs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if builtin {
				return a.showBuiltins(asJSON)
			}
			return a.withTemplates(cmd, func(ctx context.Context, c *client.Client) error {
				return a.listRemote(ctx, c, asJSON)
			}, func() error {
				cfg, err := a.loadConfig()
				if err != nil {
					return err
				}
				list, err := daemon.ListTemplates(cfg)
				if err != nil {
					return err
				}
				return a.showImages(list, asJSON)
			})
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&builtin, "builtin", false, "list the template files that are part of this program")
	return cmd
}

// showBuiltins prints what "template build builtin:NAME" takes.
func (a *app) showBuiltins(asJSON bool) error {
	names := daemon.BuiltinTemplates()
	if asJSON {
		return printJSON(a.Out, names)
	}
	_, err := fmt.Fprintln(a.Out, strings.Join(names, "\n"))
	return err
}

func (a *app) newTemplateShow() *cobra.Command {
	return &cobra.Command{
		Use:               "show NAME",
		Short:             "Show what a template was built from, as JSON",
		Example:           `  sandpit template show tools`,
		Args:              wantArgs(1, 1, "the name of a template"),
		ValidArgsFunction: a.completeTemplates,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withTemplates(cmd, func(ctx context.Context, c *client.Client) error {
				return a.showRemote(ctx, c, args[0])
			}, func() error {
				store, err := a.openImages()
				if err != nil {
					return err
				}
				data, err := store.Template(cmd.Context(), templateRef(args[0]))
				if err != nil {
					return err
				}
				return printJSON(a.Out, data)
			})
		},
	}
}

// templateRef is the image's name, whether it was given with the prefix or not.
func templateRef(name string) sandpit.Image {
	return sandpit.Image(daemon.TemplatePrefix + strings.TrimPrefix(name, daemon.TemplatePrefix))
}

func (a *app) newTemplateRemove() *cobra.Command {
	return &cobra.Command{
		Use:     "rm NAME...",
		Aliases: []string{"remove"},
		Short:   "Remove templates",
		Long: `Remove templates. Sandboxes that were made of them go on. The steps of their builds
stay in the cache of images, as long as there is room.`,
		Example:           `  sandpit template rm tools`,
		Args:              wantArgs(1, -1, "the name of a template"),
		ValidArgsFunction: a.completeTemplates,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withTemplates(cmd, func(ctx context.Context, c *client.Client) error {
				for _, name := range args {
					if err := c.Templates.Delete(ctx, strings.TrimPrefix(name, daemon.TemplatePrefix)); err != nil {
						return err
					}
					fmt.Fprintln(a.Out, templateRef(name))
				}
				return nil
			}, func() error { return a.removeLocal(cmd.Context(), args) })
		},
	}
}

// removeLocal removes templates from this machine's cache.
func (a *app) removeLocal(ctx context.Context, names []string) error {
	store, err := a.openImages()
	if err != nil {
		return err
	}
	for _, name := range names {
		ref := templateRef(name)
		if _, err := store.Remove(ctx, string(ref)); err != nil {
			return err
		}
		fmt.Fprintln(a.Out, ref)
	}
	return nil
}

// completeTemplates offers the names of templates.
func (a *app) completeTemplates(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
	cfg, err := a.loadConfig()
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	list, err := daemon.ListTemplates(cfg)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, e := range list {
		if name := strings.TrimPrefix(e.Name, daemon.TemplatePrefix); strings.HasPrefix(name, begun) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}
