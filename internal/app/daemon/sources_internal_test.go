package daemon

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestNPMMirrors asks the mirrors that are configured for npm.
func TestNPMMirrors(t *testing.T) {
	t.Parallel()
	cfg := configured(t, "[image]", `mirrors = { npm = ["npm.lan/prefix", "localhost:4873"] }`, `insecure = ["localhost:4873"]`)
	want := []string{"https://npm.lan/prefix", "http://localhost:4873"}
	if diff := cmp.Diff(want, npmSource(cfg).Registries); diff != "" {
		t.Error(diff)
	}
}
