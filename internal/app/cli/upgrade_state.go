package cli

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

func newUpgradeState(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "upgrade-state",
		Short: "Prepare sandboxes that are paused on disk for another version of the engine",
		Long: `Prepare sandboxes that are paused on disk for another version of the engine.

What a sandbox has in memory can be loaded by the version that has saved it and no
other. This writes the files of each sandbox that is paused on disk beside its memory:
the next version cannot resume it, but "sandpit stop" and "sandpit start" have it begin
with its files, without its programs. Snapshots, stopped and archived sandboxes need
nothing. Run it with the old version, as the server's user; the server may run meanwhile.
It takes as long as to resume and to pause each of them, and room for their files.
The exit status is 1 if one could not be prepared.`,
		Example: "  sandpit upgrade-state && systemctl restart sandpit",
		Args:    cobra.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runUpgradeState(cmd.Context(), a) },
	}
}

func runUpgradeState(ctx context.Context, a *app) error {
	cfg, err := a.loadConfig()
	if err != nil {
		return err
	}
	list, err := daemon.UpgradeState(ctx, cfg)
	failed := false
	for _, u := range list {
		text := "has its files"
		switch {
		case u.Err != nil:
			failed = true
			text = "is as before: " + u.Err.Error()
			if hint := sandpit.HintOf(u.Err); hint != "" {
				text += " (" + hint + ")"
			}
		case u.Done:
			text = "has its files now"
		}
		if _, err := fmt.Fprintf(a.Out, "%s %s\n", u.ID, text); err != nil {
			return err
		}
	}
	if err == nil && failed {
		return exitStatus(1)
	}
	return err
}
