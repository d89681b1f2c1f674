package daemon

import (
	"slices"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/template"
)

// TestHostHasPip lets pip install in the image of this machine's files, whose distribution
// otherwise refuses that, and nowhere else.
func TestHostHasPip(t *testing.T) {
	t.Parallel()
	const name = "PIP_BREAK_SYSTEM_PACKAGES"
	if got := withUsualEnv(sandpit.HostImage, nil)[name]; got != "1" {
		t.Errorf("host: %q", got)
	}
	if got := withUsualEnv(sandpit.HostImage, map[string]string{name: "0"})[name]; got != "0" {
		t.Errorf("host, with a value: %q", got)
	}
	if got, ok := withUsualEnv("debian:12", nil)[name]; ok {
		t.Errorf("debian: %q", got)
	}
}

// TestFetchProgress writes a line at once and then every few seconds.
func TestFetchProgress(t *testing.T) {
	t.Parallel()
	now := time.Now()
	var lines []string
	hear := fetchProgress(func(text string) { lines = append(lines, text) }, func() time.Time { return now })
	for i := range int64(7) {
		hear(i*1_000_000, 61_000_000)
		now = now.Add(time.Second)
	}
	hear(61_000_000, 61_000_000)
	want := []string{"fetch the base: 0.0 MB of 61.0 MB", "fetch the base: 5.0 MB of 61.0 MB", "fetch the base: 61.0 MB of 61.0 MB"}
	if !slices.Equal(lines, want) {
		t.Errorf("%q, want %q", lines, want)
	}
}

// TestBuiltinRecipes has the server know every template of the program.
func TestBuiltinRecipes(t *testing.T) {
	t.Parallel()
	recipes := builtinRecipes()
	for _, name := range template.Builtins() {
		if recipes[name].From == "" {
			t.Errorf("%s is missing", name)
		}
	}
	limits := sandpit.Resources{Memory: 1, CPUs: 1, Disk: 1, PIDs: 1}
	if got := (&service{registered: registrations()}).enforceableLimits("docker", limits); got != limits {
		t.Errorf("docker: %+v", got)
	}
}
