// Package daytona_test runs Daytona's published SDKs and Go clients against sandboxes.
package daytona_test

import (
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/internal/testing/testsdk"
)

// scriptTimeout is how long node may take for one script.
const scriptTimeout = 8 * time.Minute

// programsInside are programs that scripts run in sandboxes, which have this machine's files.
var programsInside = map[string][]string{"git": {"git"}, "lsp": {"pylsp"}, "previews": {"python3"}, "process": {"python3"}}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestJavaScriptSDK makes a subtest of each test in the *.test.mjs files.
func TestJavaScriptSDK(t *testing.T) {
	t.Parallel()
	testsdk.Need(t, "node", "npm")
	server, dir := newServer(t, "SANDPIT_SSH_LISTEN=127.0.0.1:0"), testsdk.Install(t, ".")
	scripts, err := filepath.Glob(filepath.Join(dir, "*.test.mjs"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("scripts: %q, %v", scripts, err)
	}
	for _, script := range scripts {
		name := strings.TrimSuffix(filepath.Base(script), ".test.mjs")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if programs, ok := programsInside[name]; ok {
				testsdk.Need(t, programs...)
			}
			for _, r := range testsdk.RunTests(t, script, server.clientEnviron(), scriptTimeout) {
				t.Run(r.Name, r.Report)
			}
		})
	}
}
