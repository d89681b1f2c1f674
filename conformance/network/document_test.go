package network_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestDocument has the tests that docs/network.md names be there.
func TestDocument(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/network.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, ok := strings.Cut(string(text), "## Tricks\n")
	table, _, ends := strings.Cut(table, "\n## ")
	if !ok || !ends {
		t.Fatal("there is no table of tricks")
	}
	var code strings.Builder
	for _, dir := range []string{"../../internal/reach/network", "../../internal/reach/network/dialer", "../../internal/reach/network/policy", "../../internal/reach/network/route", "../../provider/gvisor", "."} {
		files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(text)
		}
	}
	for _, name := range regexp.MustCompile("`((?:Test|Fuzz)[A-Za-z]+)`").FindAllStringSubmatch(table, -1) {
		if !strings.Contains(code.String(), "func "+name[1]+"(") {
			t.Errorf("there is no test %s", name[1])
		}
	}
	for _, name := range regexp.MustCompile("`conformance/network` ([a-z]+)").FindAllStringSubmatch(table, -1) {
		if !strings.Contains(code.String(), "func (l *lab) "+name[1]+"(") {
			t.Errorf("there is no group %s", name[1])
		}
	}
}
