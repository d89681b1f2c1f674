// Package models_test runs the vendors' published JavaScript SDKs against the server of scripted
// models.
package models_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/BurntSushi/toml"
	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/agent/model/script"
	"github.com/sandpit-dev/sandpit/internal/testing/testsdk"
)

const (
	// scriptTimeout is how long node may take for one script, which has minTests tests or more.
	scriptTimeout = 3 * time.Minute
	minTests      = 5
)

const key = "sk-conformance"

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestJavaScriptSDKs makes a subtest of each test in the *.test.mjs files.
func TestJavaScriptSDKs(t *testing.T) {
	t.Parallel()
	testsdk.Need(t, "node", "npm")
	dir := testsdk.Install(t, ".")
	environ := append(withoutVendors(os.Environ()), "MODELS_SERVER="+serve(t), "MODELS_KEY="+key)
	for _, file := range []string{"openai.test.mjs", "anthropic.test.mjs"} {
		t.Run(strings.TrimSuffix(file, ".test.mjs"), func(t *testing.T) {
			t.Parallel()
			results := testsdk.RunTests(t, filepath.Join(dir, file), environ, scriptTimeout)
			if len(results) < minTests {
				t.Errorf("node ran %d tests, want %d or more", len(results), minTests)
			}
			for _, r := range results {
				t.Run(r.Name, func(t *testing.T) {
					if r.Skipped {
						t.Error("skipped by node") // no test of these scripts has a reason to be
					}
					r.Report(t)
				})
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

// withoutVendors removes the variables with which the SDKs would use another server.
func withoutVendors(environ []string) []string {
	return slices.DeleteFunc(environ, func(v string) bool {
		return strings.HasPrefix(v, "OPENAI_") || strings.HasPrefix(v, "ANTHROPIC_") || strings.HasPrefix(v, "AZURE_")
	})
}
