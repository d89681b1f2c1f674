// Package testsdk runs published SDKs for Node.js, unchanged, for tests.
package testsdk

import (
	"bytes"
	"context"
	_ "embed" // reporter.mjs
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// reporter is a reporter of node that prints Results.
//
//go:embed reporter.mjs
var reporter []byte

// ReporterName is the file name of the reporter in the directory that Install returns.
const ReporterName = "reporter.mjs"

// Need skips the test if this machine lacks a program.
func Need(t *testing.T, programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			testengine.Skip(t, "this machine has no %s", program)
		}
	}
}

// Install copies the scripts of a directory to a temporary one, installs the packages of its lock
// file there, and returns it. It skips the test if npm cannot install them.
func Install(t *testing.T, from string) string {
	t.Helper()
	Need(t, "node", "npm")
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
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(path)), data, 0o600); err != nil { //nolint:gosec // a path of a test
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, ReporterName), reporter, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		testengine.Skip(t, "npm cannot install the SDK: %v\n%s", err, out)
	}
	return dir
}

// Result is the result of one check of a script: a line of JSON that it prints.
type Result struct {
	Name    string `json:"name"`
	Error   string `json:"error"` // "" if the check passed
	Skipped bool   `json:"skipped"`
}

// Report is the function of a subtest for the result.
func (r Result) Report(t *testing.T) {
	t.Helper()
	switch {
	case r.Skipped:
		t.Skip("skipped by node")
	case r.Error != "":
		t.Error(r.Error)
	}
}

// RunTests runs a script of tests and returns their results.
func RunTests(t *testing.T, script string, environ []string, timeout time.Duration) []Result {
	t.Helper()
	return Run(t, filepath.Dir(script), environ, timeout, "--test", "--test-reporter=./"+ReporterName, script)
}

// Run runs node in a directory and returns the results that it prints. The test fails if node prints
// no result, or fails itself.
func Run(t *testing.T, dir string, environ []string, timeout time.Duration, args ...string) []Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), timeout)
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
	isFailed := func(r Result) bool { return r.Error != "" }
	if err != nil && (ctx.Err() != nil || !slices.ContainsFunc(results, isFailed)) {
		t.Errorf("node: %v", err)
	}
	if diagnostics.Len() > 0 {
		t.Logf("output of node:\n%s", &diagnostics)
	}
	return results
}

func decode(t *testing.T, r io.Reader) (results []Result) {
	t.Helper()
	decoder := json.NewDecoder(r)
	for {
		var next Result
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
