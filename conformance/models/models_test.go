// Package models_test runs the vendors' published JavaScript SDKs against the server of scripted
// models.
package models_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/agent/model/script"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// patience is how long node may take with one script.
const patience = 3 * time.Minute

const key = "sk-conformance"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestJavaScriptSDKs makes a subtest of each test in the *.test.mjs files.
func TestJavaScriptSDKs(t *testing.T) {
	t.Parallel()
	for _, program := range []string{"node", "npm"} {
		if _, err := exec.LookPath(program); err != nil {
			testengine.Skip(t, "this machine has no %s", program)
		}
	}
	url, dir := serve(t), install(t)
	for _, file := range []string{"openai.test.mjs", "anthropic.test.mjs"} {
		t.Run(strings.TrimSuffix(file, ".test.mjs"), func(t *testing.T) {
			t.Parallel()
			for _, r := range runNode(t, dir, file, url) {
				t.Run(r.Name, r.report)
			}
		})
	}
}

// serve serves each script at /PROTOCOL/NAME, with turns of its own for each protocol.
func serve(t *testing.T) string {
	t.Helper()
	var scripts map[string]script.Script
	if _, err := toml.DecodeFile("scripts.toml", &scripts); err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	for name, s := range scripts {
		for _, protocol := range []string{"chat", "chat-whole", "azure", "responses", "messages"} {
			m, err := script.New(s)
			if err != nil {
				t.Fatal(err)
			}
			prefix := "/" + protocol + "/" + name
			mux.Handle(prefix+"/", http.StripPrefix(prefix, script.NewServer(m, script.ServerOptions{Key: key})))
		}
	}
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// install copies the scripts and puts the packages beside them, as the lock file has it.
func install(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	paths, err := filepath.Glob("*.mjs")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range append(paths, "package.json", "package-lock.json") {
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, path), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.CommandContext(t.Context(), "npm", "ci", "--no-audit", "--no-fund")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		testengine.Skip(t, "npm cannot install the SDKs: %v\n%s", err, out)
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
		t.Error("skipped by node")
	case r.Error != "":
		t.Error(r.Error)
	}
}

// runNode runs the tests of a file.
func runNode(t *testing.T, dir, file, url string) (results []result) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", "--test", "--test-reporter=./reporter.mjs", file)
	cmd.Dir = dir
	cmd.Env = append(withoutVendors(os.Environ()), "MODELS_SERVER="+url, "MODELS_KEY="+key)
	cmd.WaitDelay = 10 * time.Second // for what a killed node has left
	var out, diagnostics bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnostics
	runErr := cmd.Run()
	failed := false
	for decoder := json.NewDecoder(&out); ; {
		var next result
		err := decoder.Decode(&next)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("output of node: %v", err)
		}
		results, failed = append(results, next), failed || next.Error != ""
	}
	if len(results) < 5 || runErr != nil && !failed {
		t.Errorf("node ran %d tests: %v", len(results), runErr)
	}
	if diagnostics.Len() > 0 {
		t.Logf("node says:\n%s", &diagnostics)
	}
	return results
}

// withoutVendors drops the variables that would lead the SDKs elsewhere.
func withoutVendors(environ []string) []string {
	var kept []string
	for _, v := range environ {
		if !strings.HasPrefix(v, "OPENAI_") && !strings.HasPrefix(v, "ANTHROPIC_") && !strings.HasPrefix(v, "AZURE_") {
			kept = append(kept, v)
		}
	}
	return kept
}
