package daemon

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/fake"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

func TestAbilities(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		of   sandpit.Instance
		want []string
	}{
		"gvisor": {(*gvisor.Instance)(nil), []string{"pool", "network", "dial", "stats", "resize", "pause", "suspend", "checkpoint", "stop", "archive", "snapshot", "rollback", "diff"}},
		"fake":   {(*fake.Instance)(nil), []string{"pool", "network", "dial", "stats", "resize", "pause", "suspend", "checkpoint", "stop", "archive", "snapshot", "rollback", "diff"}},
		"none":   {nil, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if diff := cmp.Diff(tc.want, abilityNames(instanceAbilities(), tc.of)); diff != "" {
				t.Error(diff)
			}
		})
	}
}
