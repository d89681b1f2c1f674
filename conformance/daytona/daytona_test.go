// Package daytona_test runs Daytona's published SDKs and Go clients against sandboxes.
package daytona_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
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

// scriptTimeout is how long node may take for one script.
const scriptTimeout = 8 * time.Minute

// programsInside are programs that scripts run in sandboxes, which have this machine's files.
var programsInside = map[string][]string{"git": {"git"}, "previews": {"python3"}, "process": {"python3"}}

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestJavaScriptSDK makes a subtest of each test in the *.test.mjs files.
func TestJavaScriptSDK(t *testing.T) {
	t.Parallel()
	needPrograms(t, "node", "npm")
	server, dir := newServer(t), install(t, ".")
	scripts, err := filepath.Glob(filepath.Join(dir, "*.test.mjs"))
	if err != nil || len(scripts) == 0 {
		t.Fatalf("scripts: %q, %v", scripts, err)
	}
	for _, script := range scripts {
		name := strings.TrimSuffix(filepath.Base(script), ".test.mjs")
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if programs, ok := programsInside[name]; ok {
				needPrograms(t, programs...)
			}
			for _, r := range runTests(t, script, server) {
				t.Run(r.Name, r.report)
			}
		})
	}
}

// needPrograms skips the test if this machine lacks a program.
func needPrograms(t *testing.T, names ...string) {
	t.Helper()
	for _, program := range names {
		if _, err := exec.LookPath(program); err != nil {
			testengine.Skip(t, "this machine has no %s", program)
		}
	}
}

// install copies the scripts of a directory and installs the packages of its lock file beside
// them.
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
	cmd := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
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

// runTests runs the tests of a script against the server.
func runTests(t *testing.T, script string, server *server) []result {
	t.Helper()
	return runNode(t, filepath.Dir(script), server.clientEnviron(), "--test", "--test-reporter=./reporter.mjs", script)
}

// runNode runs node and returns the results that it prints. A failure of node itself is one of
// the test.
func runNode(t *testing.T, dir string, environ []string, args ...string) []result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), scriptTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", args...)
	cmd.Dir, cmd.Env = dir, environ
	cmd.WaitDelay = 10 * time.Second // for processes that a killed node leaves
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
		if errors.Is(err, io.EOF) {
			return results
		}
		if err != nil {
			t.Fatalf("output of node: %v", err)
		}
		results = append(results, next)
	}
}
