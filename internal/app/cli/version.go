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

// versions are the versions of this program and of the server.
type versions struct {
	Client api.Version  `json:"client"`
	Server *api.Version `json:"server,omitempty"`
}

// versionCommand has the options of sandpit version.
type versionCommand struct {
	output
}

func newVersion(a *app) *cobra.Command {
	var o versionCommand
	cmd := &cobra.Command{
		Use:               "version [flags]",
		Short:             "Show the version of this program and its parts, and of the server",
		Long:              `Show the version of this program and its parts, and of the configured server.`,
		Example:           "  sandpit version",
		Args:              wantArgs(0, 0, ""),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE:              a.withoutClient(o.run),
	}
	o.addFlags(cmd, "")
	return cmd
}

func (o *versionCommand) run(cmd *cobra.Command, a *app, _ []string) error {
	own := daemon.ReadVersions()
	v := versions{Client: api.Version{
		Sandpit: own.Sandpit, GVisor: own.GVisor, Guest: own.Guest, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
	}}
	server, problem := serverVersion(cmd.Context(), a)
	v.Server = server
	if err := showVersions(a, o.output, v); err != nil {
		return err
	}
	return a.toVerbError(cmd.Context(), problem)
}

// serverVersion returns the server's version, nil without a server.
func serverVersion(ctx context.Context, a *app) (*api.Version, error) {
	cfg, err := a.loadConfig(a.serverOverride()...)
	if err != nil {
		return nil, err
	}
	if _, runs := cfg.LocalServer(); cfg.URL == "" && !runs {
		return nil, nil //nolint:nilnil // no server is not an error
	}
	c, err := newConfiguredClient(cfg)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	const limit = 10 * time.Second
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	v, err := c.Version(ctx)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.CodeOf(err), "get the server's version: %w", err)
	}
	return &v, nil
}

func showVersions(a *app, o output, v versions) error {
	if o.isJSON() {
		return printJSON(a.Out, v)
	}
	c := v.Client
	if _, err := fmt.Fprintf(a.Out, "sandpit %s\ngVisor  %s\nguest   %s\n%s %s/%s\n", c.Sandpit, c.GVisor, c.Guest, c.Go, c.OS, c.Arch); err != nil {
		return err
	}
	if s := v.Server; s != nil {
		_, err := fmt.Fprintf(a.Out, "server  %s, gVisor %s, %s %s/%s\n", escapeText(s.Sandpit), escapeText(s.GVisor), escapeText(s.Go), escapeText(s.OS), escapeText(s.Arch))
		return err
	}
	return nil
}
