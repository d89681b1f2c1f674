package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestExplainMissing finds programs where version managers keep them.
func TestExplainMissing(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	for _, program := range []string{".pyenv/shims/python3", ".local/share/tool/bin/tool", "scripts/mine"} {
		path := filepath.Join(home, program)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	missing := sandpit.Errorf(sandpit.NotFound, "not found")
	for name, want := range map[string]string{
		"python3": filepath.Join(home, ".pyenv"),
		"tool":    filepath.Join(home, ".local/share/tool"),
		"mine":    filepath.Join(home, "scripts"),
	} {
		path := strings.Join([]string{"/nowhere", home + "/.pyenv/shims", home + "/.local/share/tool/bin", home + "/scripts"}, ":")
		err := explainMissing(missing, name, path)
		if sandpit.CodeOf(err) != sandpit.NotFound || !strings.Contains(sandpit.HintOf(err), "-v "+want+":"+want+":ro") {
			t.Errorf("%s: %v, hint %q, want %s in it", name, err, sandpit.HintOf(err), want)
		}
	}
	for _, name := range []string{"nothing", "/abs/python3"} {
		if err := explainMissing(missing, name, home+"/scripts"); sandpit.HintOf(err) != "" {
			t.Errorf("%s: hint %q, want none", name, sandpit.HintOf(err))
		}
	}
}
