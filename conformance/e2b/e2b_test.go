// Package e2b_test runs E2B's published JavaScript SDK against sandboxes.
package e2b_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testsdk"
)

// patience is how long node may take with one script.
const patience = 5 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestJavaScriptSDK makes a subtest of each test in the *.test.mjs files.
func TestJavaScriptSDK(t *testing.T) {
	t.Parallel()
	testsdk.Need(t, "node", "npm")
	server, dir := newServer(t), testsdk.Install(t, ".")
	scripts, err := filepath.Glob(filepath.Join(dir, "*.test.mjs"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("scripts: %q, %v", scripts, err)
	}
	for _, script := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(script), ".test.mjs"), func(t *testing.T) {
			t.Parallel()
			if strings.HasPrefix(filepath.Base(script), "interpreter.") {
				needKernels(t)
			}
			for _, r := range testsdk.RunTests(t, script, server.clientEnviron(), patience) {
				t.Run(r.Name, r.Report)
			}
		})
	}
}

// needKernels skips the test where Debian's Python or node have nothing to run code with.
func needKernels(t *testing.T) {
	t.Helper()
	for _, probe := range [][]string{
		{"/usr/bin/python3", "-c", "from importlib.util import find_spec\nfor m in 'IPython', 'matplotlib', 'matplotlib_inline', 'pandas': find_spec(m).name"},
		{"/usr/bin/node", "-e", "require('/usr/share/nodejs/typescript')"},
	} {
		if out, err := exec.CommandContext(t.Context(), probe[0], probe[1:]...).CombinedOutput(); err != nil {
			testengine.Skip(t, "this machine has no kernels: %s: %v\n%s", probe[0], err, out)
		}
	}
}

// withoutE2B drops what would lead the SDK elsewhere; the mere presence of
// E2B_DEBUG changes it.
func withoutE2B(environ []string) []string {
	return slices.DeleteFunc(environ, func(v string) bool { return strings.HasPrefix(v, "E2B_") })
}
