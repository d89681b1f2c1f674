package gvisor

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
)

// TestEnforceable leaves out the limits for which this user may make no control group.
func TestEnforceable(t *testing.T) {
	t.Parallel()
	all := sandpit.Resources{Memory: 1 << 30, CPUs: 2, Disk: 1 << 30, PIDs: 10}
	for name, c := range map[string]struct {
		groups cgroup.Groups
		want   sandpit.Resources
	}{
		"none":         {cgroup.Groups{}, sandpit.Resources{Disk: all.Disk, PIDs: all.PIDs}},
		"memory, v1":   {cgroup.Groups{V1: map[cgroup.Controller]string{cgroup.Memory: "/m"}}, sandpit.Resources{Memory: all.Memory, Disk: all.Disk, PIDs: all.PIDs}},
		"both, v2":     {cgroup.Groups{V2: "/g", V2Has: []cgroup.Controller{cgroup.Memory, cgroup.CPU}}, all},
		"only cpu, v2": {cgroup.Groups{V2: "/g", V2Has: []cgroup.Controller{cgroup.CPU}}, sandpit.Resources{CPUs: 2, Disk: all.Disk, PIDs: all.PIDs}},
	} {
		if got := enforceableLimits(c.groups, all); got != c.want {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
	if err := CheckLimits(sandpit.Resources{Disk: 1, PIDs: 1}); err != nil {
		t.Errorf("what the sandbox's own kernel enforces: %v", err)
	}
	can := EnforceableLimits(all)
	if err := CheckLimits(all); (err == nil) != (can == all) {
		t.Errorf("%v, and of all %+v can be enforced", err, can)
	}
	if err := CheckLimits(can); err != nil {
		t.Errorf("what can be enforced: %v", err)
	}
}
