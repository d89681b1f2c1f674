package config

import (
	"os"
	"strings"
	"testing"
)

// TestVariablesOfOthersAreDocumented looks for each variable of other programs in the page.
func TestVariablesOfOthersAreDocumented(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, page, found := strings.Cut(string(data), "## Variables of other programs")
	page, _, ended := strings.Cut(page, "\n## ")
	if !found || !ended {
		t.Fatal("the page has no section of them")
	}
	seen := 0
	for _, s := range allSettings() {
		for _, a := range s.also {
			if seen++; !strings.Contains(page, "`"+a.name) {
				t.Errorf("%s stands for %s, and is not in docs/configuration.md", a.name, s.key)
			}
		}
	}
	if seen < 8 {
		t.Errorf("%d variables of other programs: the settings are not what this test takes them for", seen)
	}
}
