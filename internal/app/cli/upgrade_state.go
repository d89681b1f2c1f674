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
		Short: "Prepare suspended sandboxes for another version of the engine",
		Long: `Prepare suspended sandboxes for another version of the engine.

Only the version that saved a sandbox's memory can load it. This command saves the files of
each suspended sandbox beside its memory: the next version cannot resume it, but "sandpit
stop" and "sandpit start" start it with its files, without its programs. Snapshots and
stopped or archived sandboxes need no preparation. Run it with the old version, as the
server's user; the server may run meanwhile. It takes as long as resuming and suspending
each sandbox, and needs disk space for their files. The exit status is 1 if a sandbox could
not be prepared.`,
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
		text := "was already prepared"
		switch {
		case u.Err != nil:
			failed = true
			text = "not prepared: " + u.Err.Error()
			if hint := sandpit.HintOf(u.Err); hint != "" {
				text += " (" + hint + ")"
			}
		case u.Done:
			text = "prepared"
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
