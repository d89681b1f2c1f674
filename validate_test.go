package sandpit_test

import (
	"math"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func TestSpecValidate(t *testing.T) {
	t.Parallel()
	mounts := func(m ...sandpit.Mount) sandpit.Spec { return sandpit.Spec{Mounts: m} }
	for name, tc := range map[string]struct {
		spec sandpit.Spec
		ok   bool
	}{
		"empty":             {sandpit.Spec{}, true},
		"usual":             {mounts(sandpit.Mount{Source: "/a", Target: "/b"}, sandpit.Mount{Source: "/a", Target: "/b/c"}), true},
		"relative source":   {mounts(sandpit.Mount{Source: "a", Target: "/b"}), false},
		"relative target":   {mounts(sandpit.Mount{Source: "/a", Target: "b"}), false},
		"target above":      {mounts(sandpit.Mount{Source: "/a", Target: "/b/../../c"}), false},
		"target root":       {mounts(sandpit.Mount{Source: "/a", Target: "/"}), false},
		"target proc":       {mounts(sandpit.Mount{Source: "/a", Target: "/proc"}), false},
		"target below dev":  {mounts(sandpit.Mount{Source: "/a", Target: "/dev/x"}), false},
		"target the guest":  {mounts(sandpit.Mount{Source: "/a", Target: "/.sandpit/sandpit-guest"}), false},
		"target like proc":  {mounts(sandpit.Mount{Source: "/a", Target: "/process"}), true},
		"target with NUL":   {mounts(sandpit.Mount{Source: "/a", Target: "/b\x00c"}), false},
		"target twice":      {mounts(sandpit.Mount{Source: "/a", Target: "/b"}, sandpit.Mount{Source: "/c", Target: "/b"}), false},
		"working directory": {sandpit.Spec{WorkDir: "/w"}, true},
		"relative work dir": {sandpit.Spec{WorkDir: "w"}, false},
		"home":              {sandpit.Spec{WorkDir: sandpit.HomeDir}, true},
		"below home":        {sandpit.Spec{WorkDir: "~/w"}, false},
		"hostname":          {sandpit.Spec{Hostname: "a-1"}, true},
		"hostname spaces":   {sandpit.Spec{Hostname: "a b"}, false},
		"hostname dash":     {sandpit.Spec{Hostname: "-a"}, false},
		"environment":       {sandpit.Spec{Env: map[string]string{"A": "=\n"}}, true},
		"environment name":  {sandpit.Spec{Env: map[string]string{"A=B": ""}}, false},
		"environment empty": {sandpit.Spec{Env: map[string]string{"": ""}}, false},
		"environment NUL":   {sandpit.Spec{Env: map[string]string{"A": "\x00"}}, false},
		"little memory":     {sandpit.Spec{Resources: sandpit.Resources{Memory: 1}}, false},
		"endless memory":    {sandpit.Spec{Resources: sandpit.Resources{Memory: math.MaxInt64}}, false},
		"endless disk":      {sandpit.Spec{Resources: sandpit.Resources{Disk: math.MaxInt64}}, false},
		"memory below zero": {sandpit.Spec{Resources: sandpit.Resources{Memory: -1}}, false},
		"no number of CPUs": {sandpit.Spec{Resources: sandpit.Resources{CPUs: math.NaN()}}, false},
		"half a CPU":        {sandpit.Spec{Resources: sandpit.Resources{CPUs: 0.5}}, true},
		"little disk":       {sandpit.Spec{Resources: sandpit.Resources{Disk: 4096}}, false},
		"many processes":    {sandpit.Spec{Resources: sandpit.Resources{PIDs: 1 << 21}}, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := tc.spec.Validate()
			if tc.ok && err != nil || !tc.ok && sandpit.CodeOf(err) != sandpit.Invalid {
				t.Errorf("got %v, want ok %v", err, tc.ok)
			}
		})
	}
}
