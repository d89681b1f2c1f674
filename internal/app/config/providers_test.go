package config_test

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// TestProviderList names several providers in each way.
func TestProviderList(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		file     string
		variable string
		want     []string
	}{
		"nothing":         {want: []string{"gvisor"}},
		"one":             {file: `provider = "docker"`, want: []string{"docker"}},
		"a list":          {file: `provider = ["gvisor", "e2b"]`, want: []string{"gvisor", "e2b"}},
		"commas":          {file: `provider = "gvisor, e2b"`, want: []string{"gvisor", "e2b"}},
		"twice":           {file: `provider = ["e2b", "gvisor", "e2b"]`, want: []string{"e2b", "gvisor"}},
		"a variable":      {file: `provider = "docker"`, variable: "SANDPIT_PROVIDER=e2b,daytona", want: []string{"e2b", "daytona"}},
		"another program": {variable: "SANDBOX_PROVIDER=e2b", want: []string{"e2b"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := user(tc.file)
			if tc.variable != "" {
				o.Environ = append(o.Environ, tc.variable)
			}
			c := load(t, o)
			if got := append([]string{c.Provider}, c.Fallbacks()...); !slices.Equal(got, tc.want) {
				t.Errorf("got %q, want %q", got, tc.want)
			}
		})
	}
	c := config.Default()
	c.Provider = "fake" // as programs do
	if got := c.Fallbacks(); len(got) > 0 {
		t.Errorf("fallbacks %q of a provider that is set alone", got)
	}
}

// TestProvidersSection reads the limits of single providers.
func TestProvidersSection(t *testing.T) {
	t.Parallel()
	o := user(`[providers]
max_sandboxes = { e2b = 10, docker = 5 }
create_timeout = { e2b = 60, docker = "2m" }
delete_stopped_after = "168h"
`)
	o.Environ = append(o.Environ, "SANDPIT_PROVIDERS_MAX_SANDBOX_HOURS=e2b=500", "SANDPIT_PROVIDERS_CALL_TIMEOUT=e2b=20s daytona=9")
	want := config.Providers{
		MaxSandboxes: map[string]int{"e2b": 10, "docker": 5}, MaxHours: map[string]int{"e2b": 500},
		CreateTimeout: map[string]time.Duration{"e2b": time.Minute, "docker": 2 * time.Minute},
		CallTimeout:   map[string]time.Duration{"e2b": 20 * time.Second, "daytona": 9 * time.Second},
		DeleteStopped: 7 * 24 * time.Hour,
	}
	if diff := cmp.Diff(want, load(t, o).Providers); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// TestInvalidProviders refuses invalid values.
func TestInvalidProviders(t *testing.T) {
	t.Parallel()
	const form = "; use letters, digits, '.', '_' and '-', at most 64"
	for file, want := range map[string]string{
		`provider = ["gvisor", ""]`:               `/home/u/.config/sandpit/config.toml:1: provider: "" is not a name` + form,
		`provider = "a,,b"`:                       `/home/u/.config/sandpit/config.toml:1: provider: "" is not a name` + form,
		`provider = []`:                           `/home/u/.config/sandpit/config.toml:1: provider: a list is not a name` + form,
		`provider = [1]`:                          `/home/u/.config/sandpit/config.toml:1: provider: a list is not a name` + form,
		`providers.max_sandboxes = 5`:             `/home/u/.config/sandpit/config.toml:1: providers.max_sandboxes: 5 is not a table of numbers; use for example { e2b = 10 }`,
		`providers.max_sandboxes = { e2b = -1 }`:  `/home/u/.config/sandpit/config.toml:1: providers.max_sandboxes: "e2b": -1 is not a number of sandboxes; use 0 to 1000000`,
		`providers.call_timeout = 5`:              `/home/u/.config/sandpit/config.toml:1: providers.call_timeout: 5 is not a table of times; use for example { e2b = 60 }`,
		`providers.call_timeout = { e2b = 0 }`:    `/home/u/.config/sandpit/config.toml:1: providers.call_timeout: "e2b": 0 is too short; use at least 1, or omit it for the default`,
		`providers.call_timeout = { "a b" = 60 }`: `/home/u/.config/sandpit/config.toml:1: providers.call_timeout: "a b": not a name of a provider; use for example { e2b = 60 }`,
	} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			if got := problems(t, user(file)); !slices.Contains(got, want) {
				t.Errorf("got %q, want %q", got, want)
			}
		})
	}
}
