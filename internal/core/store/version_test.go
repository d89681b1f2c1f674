package store_test

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// TestLibcVersion holds the C library to the one version that SQLite was
// translated with: others break it in ways that no compiler sees.
func TestLibcVersion(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("go"); err != nil {
		testengine.Skip(t, "no go command: %v", err)
	}
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Version}} {{.GoMod}}",
		"modernc.org/sqlite", "modernc.org/libc").Output()
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(out))
	if len(fields) != 4 {
		t.Fatalf("go list says %q", out)
	}
	text, err := os.ReadFile(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	asked := regexp.MustCompile(`modernc\.org/libc (\S+)`).FindSubmatch(text)
	if asked == nil || string(asked[1]) != fields[2] {
		t.Errorf("modernc.org/libc is %s, and modernc.org/sqlite %s wants %s", fields[2], fields[0], asked)
	}
}
