package cli

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

// completionTimeout bounds the requests of a completion: a person waits for it at the keyboard.
const completionTimeout = 2 * time.Second

// maxCompletions bounds how many sandboxes or snapshots are offered.
const maxCompletions = 1000

// completeFromServer returns the names that list reads from the server, as namesOf gives them.
// Without a server there are none: a completion shows no errors.
func completeFromServer[T any](
	ctx context.Context, a *app, list func(context.Context, *client.Client) ([]T, error), namesOf func(T) []string,
) []string {
	c, err := a.newClient()
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := newCompletionContext(ctx)
	defer cancel()
	items, err := list(ctx, c)
	if err != nil {
		return nil
	}
	var names []string
	for _, item := range items {
		names = append(names, namesOf(item)...)
	}
	return names
}

// newCompletionContext returns a context with the timeout of completions. Cobra passes no
// context to some completions.
func newCompletionContext(ctx context.Context) (context.Context, context.CancelFunc) {
	if ctx == nil {
		ctx = context.Background()
	}
	return context.WithTimeout(ctx, completionTimeout)
}

// completeSandboxes offers the names and IDs of sandboxes for the first arguments; a maximum of 0
// means for all.
func (a *app) completeSandboxes(maximum int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		if maximum > 0 && len(args) >= maximum {
			return nil, none
		}
		return a.sandboxNames(cmd.Context(), args, begun), none
	}
}

// sandboxNames returns the names and IDs of sandboxes that begin with a text, except the given
// ones.
func (a *app) sandboxNames(ctx context.Context, given []string, begun string) []string {
	list := func(ctx context.Context, c *client.Client) ([]sandpit.Sandbox, error) {
		return c.Sandboxes.List(ctx, client.Filter{Limit: maxCompletions})
	}
	return completeFromServer(ctx, a, list, func(s sandpit.Sandbox) (names []string) {
		for _, name := range []string{s.Spec.Name, string(s.ID)} {
			// A shell would interpret special characters of a name.
			plain := name != "" && !strings.ContainsFunc(name, func(r rune) bool { return !isPlainRune(r) })
			if plain && strings.HasPrefix(name, begun) && !slices.Contains(given, name) {
				names = append(names, cobra.CompletionWithDesc(name, string(s.State)))
			}
		}
		return names
	})
}

func isPlainRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r)
}

// completeSnapshots offers the names and IDs of snapshots for the first arguments; a maximum of 0
// means for all.
func (a *app) completeSnapshots(maximum int) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		if maximum > 0 && len(args) >= maximum {
			return nil, none
		}
		return a.snapshotNames(cmd.Context(), begun), none
	}
}

// completeSnapshotsAndFiles offers a snapshot, then files.
func (a *app) completeSnapshotsAndFiles(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return a.completeSnapshots(1)(cmd, args, begun)
	}
	return nil, cobra.ShellCompDirectiveDefault
}

// snapshotNames returns the names and IDs of snapshots that begin with a text.
func (a *app) snapshotNames(ctx context.Context, begun string) []string {
	list := func(ctx context.Context, c *client.Client) ([]sandpit.Snapshot, error) {
		return c.Snapshots.List(ctx, client.SnapshotFilter{Limit: maxCompletions})
	}
	return completeFromServer(ctx, a, list, func(s sandpit.Snapshot) (names []string) {
		for _, name := range []string{s.Name, string(s.ID)} {
			if name != "" && strings.HasPrefix(name, begun) {
				names = append(names, name)
			}
		}
		return names
	})
}

// completeFirstFile offers files for the first argument only.
func completeFirstFile(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	if len(args) == 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	return nil, cobra.ShellCompDirectiveNoFileComp
}

// completeImage offers the images that are snapshots; registries are not queried.
func (a *app) completeImage(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 || !strings.HasPrefix(begun, snapshotPrefix) {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.snapshotImages(cmd.Context(), begun), cobra.ShellCompDirectiveNoFileComp
}

// snapshotImages returns snapshots as images.
func (a *app) snapshotImages(ctx context.Context, begun string) []string {
	names := a.snapshotNames(ctx, strings.TrimPrefix(begun, snapshotPrefix))
	for i := range names {
		names[i] = snapshotPrefix + names[i]
	}
	return names
}

// completeSides offers sandboxes and snapshots.
func (a *app) completeSides(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	const none = cobra.ShellCompDirectiveNoFileComp
	if len(args) >= 2 {
		return nil, none
	}
	if strings.HasPrefix(begun, snapshotPrefix) {
		return a.snapshotImages(cmd.Context(), begun), none
	}
	return a.sandboxNames(cmd.Context(), args, begun), none
}

// completeCommands offers a sandbox, then commands in it.
func (a *app) completeCommands(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return a.commandNames(cmd.Context(), args[0], begun), cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeSandboxes(1)(cmd, args, begun)
}

// commandNames returns the IDs of a sandbox's commands that begin with a text.
func (a *app) commandNames(ctx context.Context, sandbox, begun string) []string {
	list := func(ctx context.Context, c *client.Client) ([]sandpit.CommandInfo, error) {
		id, err := findSandbox(ctx, c, sandbox)
		if err != nil {
			return nil, err
		}
		return journalOf(c.Sandboxes.Open(id).Guest()).ListCommands(ctx)
	}
	return completeFromServer(ctx, a, list, func(i sandpit.CommandInfo) []string {
		if sandpit.ValidateCommandID(i.ID) != nil || !strings.HasPrefix(i.ID, begun) {
			return nil
		}
		return []string{cobra.CompletionWithDesc(i.ID, escapeText(formatCommandLine(i.Args)))}
	})
}

// completeImages offers the names of images in the image cache, or in the engine or server that
// is used instead.
func (a *app) completeImages(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	known, err := a.imageNames(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var names []string
	for _, name := range known {
		if name != "" && !slices.Contains(args, name) && strings.HasPrefix(name, begun) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

func (a *app) imageNames(ctx context.Context) (names []string, err error) {
	s, err := a.openRemoteImages(ctx, "", areImagesOnServer)
	if err != nil {
		return nil, err
	}
	if s != nil {
		ctx, cancel := newCompletionContext(ctx)
		defer cancel()
		list, err := s.List(ctx)
		for _, i := range list {
			names = append(names, i.Name)
		}
		return names, errors.Join(err, s.Close())
	}
	store, err := a.openImages()
	if err != nil {
		return nil, err
	}
	list, err := store.List()
	for _, e := range list {
		names = append(names, e.Name)
	}
	return names, err
}

// completeRunnable offers images and files.
func (a *app) completeRunnable(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	names, _ := a.completeImages(cmd, nil, begun) // files are offered anyway
	return names, cobra.ShellCompDirectiveDefault
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
		if name := strings.TrimPrefix(e.Name, sandpit.TemplatePrefix); strings.HasPrefix(name, begun) {
			names = append(names, name)
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// completeTools offers the names of tools for the argument at an index.
func completeTools(place int) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		const none = cobra.ShellCompDirectiveNoFileComp
		tools, err := tool.New(nil)
		if err != nil || len(args) != place {
			return nil, none
		}
		var names []string
		for _, t := range tools.Tools() {
			names = append(names, t.Name)
		}
		return names, none
	}
}
