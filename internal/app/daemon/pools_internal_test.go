package daemon

import (
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// TestPoolsOfProviders configures pools of each provider: those whose sandboxes cannot be claimed are refused before a
// spare is created.
func TestPoolsOfProviders(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]sandpit.Code{
		"gvisor": "", "docker": "", "e2b": sandpit.Unsupported, "daytona": sandpit.Unsupported,
	} {
		own := config.Config{Provider: "gvisor", Pools: []config.Pool{{Size: 1}, {Provider: name, Size: 1}}}
		usual := config.Config{Provider: name, Pools: []config.Pool{{Size: 1}}}
		for of, cfg := range map[string]config.Config{"its own": own, "the default": usual} {
			err := checkPools(cfg, registrations())
			if got := sandpit.CodeOf(err); got != want {
				t.Errorf("provider %s, %s: %v, want the code %q", name, of, err, want)
			}
			if hint := sandpit.HintOf(err); want != "" && !strings.Contains(hint, "gvisor") {
				t.Errorf("provider %s: hint %q", name, hint)
			}
		}
	}
	cfg := config.Config{Provider: "e2b", ProviderList: []string{"e2b"}, Pools: []config.Pool{{Size: 1}}}
	s := &service{cfg: cfg, registered: registrations()}
	if err := s.openParts(t.Context()); sandpit.CodeOf(err) != sandpit.Unsupported || !strings.Contains(err.Error(), "pool 1: provider e2b") {
		t.Errorf("the server starts with a pool at E2B: %v", err)
	}
}
