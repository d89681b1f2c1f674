package gvisor

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
)

func TestLimitsWithoutGroups(t *testing.T) {
	t.Parallel()
	none := cgroup.Groups{Missing: map[cgroup.Controller]string{cgroup.Memory: "not here", cgroup.CPU: "not there"}}
	req := limitsRequest{Resources: sandpit.Resources{Memory: 1 << 30, CPUs: 2, Disk: 1 << 30, PIDs: 10}}
	l, err := newLimits(none, sandpit.NewID(), "", req, nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"memory is not limited here: not here", "CPU time is not limited here: not there"}, l.notes); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
	if want := (sandpit.Resources{Disk: 1 << 30, PIDs: 10}); l.enforced != want {
		t.Errorf("enforced: %+v, want %+v", l.enforced, want)
	}
	for _, c := range []cgroup.Controller{cgroup.Memory, cgroup.CPU} {
		req.Explicit = []cgroup.Controller{c}
		if _, err := newLimits(none, sandpit.NewID(), "", req, nil); sandpit.CodeOf(err) != sandpit.Unsupported || sandpit.HintOf(err) == "" {
			t.Errorf("an explicit limit of %s: %v", c, err)
		}
	}
}

func TestKernelIsTold(t *testing.T) {
	t.Parallel()
	args := []string{"runsc-sandbox", "--root=/gvisor", "boot", "--bundle=/b", "--total-host-memory", "9", "--total-memory", "9", "id"}
	want := []string{"runsc-sandbox", "--root=/gvisor", "boot", "--cpu-num=3", "--bundle=/b", "--total-host-memory", "9", "--total-memory", "5", "id"}
	if diff := cmp.Diff(want, kernelLimits{Memory: 5, CPUs: 3}.setFlags(args)); diff != "" {
		t.Errorf("arguments (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(args, kernelLimits{}.setFlags(args)); diff != "" {
		t.Errorf("arguments without limits (-want +got):\n%s", diff)
	}
	if got := findFlag([]string{"gofer", "--bundle", "/b"}, "--bundle"); got != "/b" {
		t.Errorf("bundle %q", got)
	}
}
