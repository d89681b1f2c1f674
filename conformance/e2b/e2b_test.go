// Package e2b_test runs E2B's published JavaScript SDK against sandboxes.
package e2b_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// patience is how long node may take with one script.
const patience = 5 * time.Minute

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestJavaScriptSDK makes a subtest of each test in the *.test.mjs files.
func TestJavaScriptSDK(t *testing.T) {
	t.Parallel()
	needNode(t)
	server, dir := newServer(t), install(t, ".")
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
			for _, r := range runNode(t, script, server) {
				t.Run(r.Name, r.report)
			}
		})
	}
}

// needNode skips the test where there is no node, or nothing that installs packages.
func needNode(t *testing.T) {
	t.Helper()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			testengine.Skip(t, "this machine has no %s", program)
		}
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

// install copies the scripts of a directory and puts the packages beside them, as
// the lock file has it.
func install(t *testing.T, from string) string {
	t.Helper()
	dir := t.TempDir()
	paths, err := filepath.Glob(filepath.Join(from, "*.mjs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, filepath.Join(from, "package.json"), filepath.Join(from, "package-lock.json")) {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		testengine.Skip(t, "npm cannot install the SDK: %v\n%s", err, out)
	}
	return dir
}

// result is one line of reporter.mjs.
type result struct {
	Name    string `json:"name"`
	Error   string `json:"error"`
	Skipped bool   `json:"skipped"`
}

func (r result) report(t *testing.T) {
	switch {
	case r.Skipped:
		t.Skip("skipped by node")
	case r.Error != "":
		t.Error(r.Error)
	}
}

// runNode runs a script against the server.
func runNode(t *testing.T, script string, server *server) []result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "--test", "--test-reporter=./reporter.mjs", script)
	cmd.Dir = filepath.Dir(script)
	cmd.Env = server.clientEnviron()
	cmd.WaitDelay = 10 * time.Second // for what a killed node has left
	var out, diagnostics bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnostics
	err := cmd.Run()
	results := decode(t, &out)
	if len(results) == 0 {
		t.Error("node ran no tests")
	}
	isFailed := func(r result) bool { return r.Error != "" }
	if err != nil && (ctx.Err() != nil || !slices.ContainsFunc(results, isFailed)) {
		t.Errorf("node: %v", err)
	}
	if diagnostics.Len() > 0 {
		t.Logf("node says:\n%s", &diagnostics)
	}
	return results
}

func decode(t *testing.T, r io.Reader) (results []result) {
	t.Helper()
	decoder := json.NewDecoder(r)
	for {
		var next result
		err := decoder.Decode(&next)
		if err == io.EOF {
			return results
		}
		if err != nil {
			t.Fatalf("output of node: %v", err)
		}
		results = append(results, next)
	}
}

// withoutE2B drops what would lead the SDK elsewhere; the mere presence of
// E2B_DEBUG changes it.
func withoutE2B(environ []string) []string {
	return slices.DeleteFunc(environ, func(v string) bool { return strings.HasPrefix(v, "E2B_") })
}
