package cli

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

// versions are this program's and the server's.
type versions struct {
	Client api.Version  `json:"client"`
	Server *api.Version `json:"server,omitempty"`
}

func (a *app) newVersion() *cobra.Command {
	var o output
	cmd := &cobra.Command{
		Use:   "version [flags]",
		Short: "Show the version of this program and its parts, and of the server",
		Long: `Show the version of this program and its parts, and of the server that the
environment, the configuration or --server names.`,
		Example:           "  sandpit version",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: func(cmd *cobra.Command, _ []string) error {
			own := daemon.ReadVersions()
			v := versions{Client: api.Version{
				Sandpit: own.Sandpit, GVisor: own.GVisor, Guest: own.Guest, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
			}}
			server, problem := a.serverVersion(cmd.Context())
			v.Server = server
			if err := a.showVersions(o, v); err != nil {
				return err
			}
			return a.verbFailed(cmd.Context(), problem)
		},
	}
	o.add(cmd, "")
	return cmd
}

// serverVersion asks the server if one is named.
func (a *app) serverVersion(ctx context.Context) (*api.Version, error) {
	cfg, err := a.loadConfig(a.serverOverride()...)
	if err != nil {
		return nil, err
	}
	if _, runs := cfg.LocalServer(); cfg.URL == "" && !runs {
		return nil, nil //nolint:nilnil // there is none, which is no failure
	}
	c, err := dialConfigured(cfg)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	const limit = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	v, err := c.Version(ctx)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "the server's version: %w", err)
	}
	return &v, nil
}

func (a *app) showVersions(o output, v versions) error {
	if o.json() {
		return printJSON(a.Out, v)
	}
	c := v.Client
	if _, err := fmt.Fprintf(a.Out, "sandpit %s\ngVisor  %s\nguest   %s\n%s %s/%s\n", c.Sandpit, c.GVisor, c.Guest, c.Go, c.OS, c.Arch); err != nil {
		return err
	}
	if s := v.Server; s != nil {
		_, err := fmt.Fprintf(a.Out, "server  %s, gVisor %s, %s %s/%s\n", safe(s.Sandpit), safe(s.GVisor), safe(s.Go), safe(s.OS), safe(s.Arch))
		return err
	}
	return nil
}
