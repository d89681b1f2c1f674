package mcp_test

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// npx runs a program of npm's packages, and returns its output and how it ended. A machine
// that cannot have them skips the test.
func npx(t *testing.T, environ []string, packages []string, args ...string) (string, error) {
	t.Helper()
	program, err := exec.LookPath("npx")
	if err != nil {
		testengine.Skip(t, "there is no npx")
	}
	var from []string
	for _, p := range packages {
		from = append(from, "-p", p)
	}
	run := func(args ...string) (string, string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, program, append(append([]string{"--yes"}, from...), args...)...)
		cmd.Env = slices.Concat(environ, []string{"HOME=" + os.Getenv("HOME"), "NO_COLOR=1"})
		var errs strings.Builder
		cmd.Stderr = &errs
		out, err := cmd.Output()
		return string(out), errs.String(), err
	}
	out, errs, err := run(args...)
	if err == nil {
		return out + errs, nil
	}
	if _, errs, err := run("node", "--version"); err != nil {
		testengine.Skip(t, "npm cannot install %v: %v\n%s", packages, err, errs)
	}
	return out + errs, err
}

// TestConformance has the protocol's own suite test the server. What does not fit this
// server is listed with its reason, and nothing else may fail.
func TestConformance(t *testing.T) {
	t.Parallel()
	s := newServer(t, "SANDPIT_SERVER_KEYLESS=true") // the suite shows no key
	out, err := npx(t, testengine.Environ(t.TempDir()), []string{"node@22", "@modelcontextprotocol/conformance@0.1.16"},
		"conformance", "server", "--url", s.url+"/mcp", "--suite", "all", "--expected-failures", "expected-failures.yml", "-o", t.TempDir())
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	for _, scenario := range []string{
		"server-initialize", "ping", "tools-list", "resources-list", "prompts-list", "logging-set-level", "server-sse-multiple-streams", "dns-rebinding-protection",
	} {
		if !strings.Contains(out, "✓ "+scenario+": ") {
			t.Errorf("%s has not passed:\n%s", scenario, out)
		}
	}
}

// TestInspector uses the Inspector's command line, over both transports.
func TestInspector(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	for name, where := range map[string][]string{
		"stdio": {testengine.Path(t), "mcp"},
		"http":  {s.url + "/mcp", "--transport", "http", "--header", "X-API-Key: " + s.key(t, "inspector")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			inspect := func(args ...string) string {
				t.Helper()
				out, err := npx(t, testengine.Environ(t.TempDir()), []string{"@modelcontextprotocol/inspector@2.12.0"},
					append(append([]string{"mcp-inspector", "--cli"}, where...), args...)...)
				if err != nil {
					t.Fatalf("%v: %v\n%s", args, err, out)
				}
				return out
			}
			out := inspect("--method", "tools/list")
			var list struct{ Tools []struct{ Name string } }
			if err := json.NewDecoder(strings.NewReader(out[max(0, strings.IndexByte(out, '{')):])).Decode(&list); err != nil || len(list.Tools) < 20 {
				t.Errorf("%d tools, %v", len(list.Tools), err)
			}
			if out := inspect("--method", "tools/call", "--tool-name", "shell_exec", "--tool-arg", "command=echo hello from $0"); !strings.Contains(out, "hello from bash") {
				t.Errorf("a call: %s", out)
			}
		})
	}
}

// TestLangChain has LangChain's adapters use the tools over both transports, each with one session for all calls.
func TestLangChain(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	out, err := npx(t, testengine.Environ(t.TempDir()), []string{"@langchain/mcp-adapters@1.1.4", "@langchain/core@1.4.0"},
		"node", "testdata/langchain.cjs", testengine.Path(t), s.url, s.key(t, "langchain"))
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, want := range []string{
		"stdio tools 33\n", `stdio read {"type":"text","text":"by LangChain",`, `stdio shell {"type":"text","text":"[SUCCESS]\nby LangChain"`,
		"stdio failed MCP tool 'file_read' on server 'stdio' returned an error: ERROR: file not found", "stdio failed Received tool input did not match",
		"http tools 14\n", `http read {"type":"text","text":"by LangChain",`, `http shell {"type":"text","text":"[SUCCESS]\nby LangChain"`,
		"http failed MCP tool 'file_read' on server 'http' returned an error: ERROR: file not found", "http failed Received tool input did not match",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in:\n%s", want, out)
		}
	}
}
