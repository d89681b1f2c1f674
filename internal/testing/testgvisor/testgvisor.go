// Package testgvisor gives tests real sandboxes of gVisor.
package testgvisor

import (
	"os"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// New returns a provider whose only image is the machine's own programs, and closes it after the test.
// It skips the test on a machine where no sandbox can start.
func New(tb testing.TB) *gvisor.Provider {
	tb.Helper()
	engine := testengine.Path(tb)
	images, err := image.Open(tb.TempDir(), image.Options{})
	if err != nil {
		tb.Fatal(err)
	}
	runtime, err := os.MkdirTemp("", "sandpit-") //nolint:usetesting // a short path: it holds sockets
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = os.RemoveAll(runtime) }) // best effort: leftovers do no harm
	p, err := gvisor.New(gvisor.Config{
		RuntimeDir: runtime, ScratchDir: tb.TempDir(), KeepDir: tb.TempDir(), SuspendDir: tb.TempDir(), Images: images, Engine: engine,
		Defaults: testengine.Limits(),
	})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := p.Close(); err != nil {
			tb.Errorf("close the provider: %v", err)
		}
	})
	return p
}

// Box returns a sandbox of a new provider.
func Box(tb testing.TB) sandpit.Instance {
	tb.Helper()
	box, err := New(tb).Create(tb.Context(), sandpit.NewID(), sandpit.Spec{})
	if err != nil {
		tb.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
	}
	return box
}
