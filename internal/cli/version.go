package cli

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit/internal/daemon"
)

func (a *app) newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the version of this program and its parts",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			v := daemon.ReadVersions()
			_, err := fmt.Fprintf(a.Out, "sandpit %s\ngVisor  %s\nguest   %s\n%s %s/%s\n",
				v.Sandpit, v.GVisor, v.Guest, runtime.Version(), runtime.GOOS, runtime.GOARCH)
			return err
		},
	}
}
