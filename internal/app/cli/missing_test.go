package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/hostpath"
)

// TestExplainMissing finds programs where version managers keep them.
func TestExplainMissing(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	for _, program := range []string{".pyenv/shims/python3", ".local/share/tool/bin/tool", "scripts/mine", ".local/bin/pipped", "bin/homely"} {
		path := filepath.Join(home, program)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	rules := hostpath.Rules{Homes: []string{home}, Own: []string{filepath.Join(home, ".local/state/sandpit")}}
	missing := sandpit.Errorf(sandpit.NotFound, "not found")
	for name, want := range map[string]string{
		"python3": filepath.Join(home, ".pyenv"),
		"tool":    filepath.Join(home, ".local/share/tool"),
		"mine":    filepath.Join(home, "scripts"),
		"pipped":  filepath.Join(home, ".local/bin"), // .local holds the state
		"homely":  filepath.Join(home, "bin"),
	} {
		path := strings.Join([]string{"/nowhere", home + "/.pyenv/shims", home + "/.local/share/tool/bin", home + "/scripts", home + "/.local/bin", home + "/bin"}, ":")
		err := explainMissing(missing, name, path, rules)
		if sandpit.CodeOf(err) != sandpit.NotFound || !strings.Contains(sandpit.HintOf(err), "-v "+want+":"+want+" ") {
			t.Errorf("%s: %v, hint %q, want %s in it", name, err, sandpit.HintOf(err), want)
		}
	}
	for name, want := range map[string]string{"nothing": "/usr of this machine", "/abs/python3": ""} {
		if hint := sandpit.HintOf(explainMissing(missing, name, home+"/scripts", rules)); !strings.Contains(hint, want) || want == "" && hint != "" {
			t.Errorf("%s: hint %q, want %q", name, hint, want)
		}
	}
}
