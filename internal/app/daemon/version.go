package daemon

import (
	"runtime"
	"runtime/debug"

	"github.com/sandpit-dev/sandpit/internal/inside/guestbin"
)

// Versions names this program and its parts, for people.
type Versions struct{ Sandpit, GVisor, Guest string }

// ReadVersions reads what the Go toolchain wrote into this program.
func ReadVersions() Versions {
	v := Versions{Sandpit: "unknown", GVisor: "unknown", Guest: "played by this program"}
	if guestbin.Has(runtime.GOARCH) {
		v.Guest = "built in"
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Sandpit = info.Main.Version
	for _, s := range info.Settings {
		if s.Key == "vcs.revision" && v.Sandpit == "(devel)" {
			v.Sandpit = "devel " + s.Value
		}
	}
	for _, m := range info.Deps {
		if m.Path == "gvisor.dev/gvisor" {
			v.GVisor = m.Version
		}
	}
	return v
}
