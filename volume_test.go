package sandpit_test

import (
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func TestVolumeNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]sandpit.Code{
		"a": "", "Data_1.2-x": "", strings.Repeat("v", 63): "", strings.Repeat("v", 64): sandpit.Invalid,
		"": sandpit.Invalid, ".": sandpit.Invalid, "..": sandpit.Invalid, ".hidden": sandpit.Invalid, "-f": sandpit.Invalid,
		"a/b": sandpit.Invalid, "../a": sandpit.Invalid, "a b": sandpit.Invalid, "a\n": sandpit.Invalid, "ä": sandpit.Invalid, "a\x00": sandpit.Invalid,
	} {
		if got := sandpit.CodeOf(sandpit.CheckVolumeName(name)); got != want {
			t.Errorf("%q: %q, want %q", name, got, want)
		}
	}
}

func TestMountSource(t *testing.T) {
	t.Parallel()
	for m, want := range map[sandpit.Mount]sandpit.Code{
		{Source: "/a", Target: "/b"}:                "",
		{Volume: "a", Target: "/b"}:                 "",
		{Source: "/a", Volume: "a", Target: "/b"}:   sandpit.Invalid,
		{Volume: "../../etc", Target: "/b"}:         sandpit.Invalid,
		{Volume: "/etc", Target: "/b"}:              sandpit.Invalid,
		{Source: "/etc", Volume: ".", Target: "/b"}: sandpit.Invalid,
	} {
		if got := sandpit.CodeOf(m.CheckSource()); got != want {
			t.Errorf("%+v: %q, want %q", m, got, want)
		}
	}
}
