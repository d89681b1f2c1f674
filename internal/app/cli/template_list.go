package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
	"github.com/sandpit-dev/sandpit/internal/build/template"
)

// templateListCommand has the options of sandpit template ls.
type templateListCommand struct {
	asJSON, builtin bool
}

func newTemplateList(a *app) *cobra.Command {
	var o templateListCommand
	cmd := &cobra.Command{
		Use:     "ls [flags]",
		Aliases: []string{"list"},
		Short:   "List the templates",
		Example: `  sandpit template ls
  sandpit template ls --json | jq -r '.[].name'
  sandpit template ls --builtin`,
		Args: wantArgs(0, 0, ""),
		RunE: a.withoutClient(o.run),
	}
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print JSON")
	cmd.Flags().BoolVar(&o.builtin, "builtin", false, "list the template files that are part of this program")
	return cmd
}

func (o *templateListCommand) run(cmd *cobra.Command, a *app, _ []string) error {
	if o.builtin {
		return showBuiltins(a, o.asJSON)
	}
	return a.withTemplates(cmd, func(ctx context.Context, c *client.Client) error {
		return listRemoteTemplates(ctx, a, c, o.asJSON)
	}, func() error {
		cfg, err := a.loadConfig()
		if err != nil {
			return err
		}
		list, err := daemon.ListTemplates(cfg)
		if err != nil {
			return err
		}
		return a.showImages(list, o.asJSON)
	})
}

// showBuiltins prints the names for "template build builtin:NAME".
func showBuiltins(a *app, asJSON bool) error {
	names := template.Builtins()
	if asJSON {
		return printJSON(a.Out, names)
	}
	_, err := fmt.Fprintln(a.Out, strings.Join(names, "\n"))
	return err
}

// listRemote lists the templates of a server.
func listRemoteTemplates(ctx context.Context, a *app, c *client.Client, asJSON bool) error {
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
			name = t.FullName() // the name for other owners
		}
		rows = append(rows, []string{
			name, cmp.Or(strings.Join(tags, " "), "-"), cmp.Or(t.Owner, "-"), formatYesNo(t.Public), strconv.FormatInt(t.Spawned, 10), t.UpdatedAt.Format(time.DateTime),
		})
	}
	return writeTable(a.Out, rows, nil)
}
