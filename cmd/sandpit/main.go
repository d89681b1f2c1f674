// Command sandpit gives AI agents safe computers to work in.
package main

import (
	"context"
	"os"
	"runtime"

	"github.com/sandpit-dev/sandpit/internal/app/cli"
	"github.com/sandpit-dev/sandpit/internal/inside/guest"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

func init() { //nolint:gochecknoinits // the first thread can be kept only from here
	if gvisor.NeedsMainThread(os.Args) {
		runtime.LockOSThread()
	}
}

func main() {
	if run, ok := gvisor.Role(os.Args); ok {
		os.Exit(run())
	}
	if guest.IsRole(os.Args) {
		os.Exit(guest.Main())
	}
	ctx, stop := cli.WithSignals(context.Background())
	status := cli.Main(ctx, os.Args[1:])
	stop()
	os.Exit(status)
}
