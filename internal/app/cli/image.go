package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

func (a *app) newImage() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "image",
		Aliases: []string{"images"},
		Short:   "Fetch, import, list and remove images",
		Long: `Fetch, import, list and remove images.

An image is what the files of a sandbox start from. Those of registries are
fetched once and then used from the cache, without asking the network. The cache
removes what was used least recently when it grows beyond image.cache_size.

pull, ls and rm are about the images of a server when --server, SANDPIT_URL or the
configuration names one or your own server runs, and of provider docker's engine when
that is the provider; else all are about the cache of this machine.`,
		Example: `  sandpit image pull python:3.12-slim
  sandpit image ls
  sandpit image prune --older-than 30d`,
		Args: noSuchCommand,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(a.newImagePull(), a.newImageImport(), a.newImageUpdate(),
		a.newImageList(), a.newImageRemove(), a.newImagePrune())
	return cmd
}

func (a *app) openImages() (*daemon.Images, error) {
	cfg, err := a.loadConfig()
	if err != nil {
		return nil, err
	}
	return daemon.OpenImages(cfg)
}

// wantArgs is cobra's MinimumNArgs or ExactArgs with our exit status.
func wantArgs(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < least {
			return usageError(cmd, what+" is missing")
		}
		if most >= 0 && len(args) > most {
			return usageError(cmd, fmt.Sprintf("too many arguments: %q", args[most]))
		}
		return nil
	}
}

// completeImages offers the names of images in the cache, or where else they would be
// taken from.
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
	s, err := a.openShelf("", imagesOnServer)
	if err != nil {
		return nil, err
	}
	if s != nil {
		if ctx == nil {
			ctx = context.Background()
		}
		ctx, cancel := context.WithTimeout(ctx, completionTime)
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

// completeRunnable offers images besides files.
func (a *app) completeRunnable(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveDefault
	}
	names, _ := a.completeImages(cmd, nil, begun) // without any, files are still offered
	return names, cobra.ShellCompDirectiveDefault
}

func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(v)
}

// shortDigest is as much of a digest as people compare.
func shortDigest(digest string) string {
	const enough = 12
	hex := strings.TrimPrefix(digest, "sha256:")
	return hex[:min(len(hex), enough)]
}

func showSize(bytes int64) string {
	const unit = 1000
	if bytes < unit {
		return fmt.Sprintf("%d B", bytes)
	}
	value, names := float64(bytes), "kMGTPE"
	i := -1
	for value >= unit && i < len(names)-1 {
		value /= unit
		i++
	}
	return fmt.Sprintf("%.3g %cB", value, names[i])
}

// showAge says how long ago something was.
func showAge(at time.Time) string {
	const day = 24 * time.Hour
	if at.IsZero() {
		return "-"
	}
	switch age := time.Since(at); {
	case age < time.Minute:
		return "now"
	case age < time.Hour:
		return fmt.Sprintf("%d min ago", int(age/time.Minute))
	case age < 2*day:
		return fmt.Sprintf("%d h ago", int(age/time.Hour))
	case age < 60*day:
		return fmt.Sprintf("%d days ago", int(age/day))
	default:
		return at.Format(time.DateOnly)
	}
}

// parseAge reads a duration that may also be in days.
func parseAge(flag, text string) (time.Duration, error) {
	if text == "" {
		return 0, nil
	}
	var days int
	if n, err := fmt.Sscanf(text, "%dd", &days); n == 1 && err == nil && fmt.Sprintf("%dd", days) == text && days > 0 && days < 36500 {
		return time.Duration(days) * 24 * time.Hour, nil
	}
	if d, err := time.ParseDuration(text); err == nil && d > 0 {
		return d, nil
	}
	return 0, sandpit.Errorf(sandpit.Invalid, "%s %q: want a time such as 30d or 12h", flag, text)
}
