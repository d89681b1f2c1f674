package cli

import (
	"testing"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// TestChosenProvider names a provider in every way, which a request to a server then has.
func TestChosenProvider(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		environ []string
		flag    string
		want    string
	}{
		"no way":             {nil, "", ""},
		"our variable":       {[]string{"SANDPIT_PROVIDER=docker"}, "", "docker"},
		"another's variable": {[]string{"SANDBOX_PROVIDER=docker"}, "", "docker"},
		"the flag":           {[]string{"SANDPIT_PROVIDER=docker"}, "gvisor", "gvisor"},
	} {
		cfg, err := config.Load(config.Options{Environ: append(tc.environ, "HOME="+t.TempDir()), Home: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		if got := chosenProvider(cfg, tc.flag); got != tc.want {
			t.Errorf("%s: got %q, want %q", name, got, tc.want)
		}
	}
}
