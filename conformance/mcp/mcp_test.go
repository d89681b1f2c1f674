// Package mcp_test drives `sandpit mcp` with clients of the Model Context Protocol that
// others have written.
package mcp_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

const patience = 2 * time.Minute

// client connects to a program of ours.
func connect(tb testing.TB, args ...string) *sdk.ClientSession {
	tb.Helper()
	return connectIn(tb, tb.TempDir(), args...)
}

// connectIn is connect with a directory for all that the program keeps.
func connectIn(tb testing.TB, dir string, args ...string) *sdk.ClientSession {
	tb.Helper()
	// The test's own context ends before what it cleans up.
	cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), testengine.Path(tb), append([]string{"mcp"}, args...)...)
	cmd.Env = testengine.Environ(dir)
	cmd.Stderr = os.Stderr
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(ctx, &sdk.CommandTransport{Command: cmd, TerminateDuration: patience}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := session.Close(); err != nil {
			tb.Errorf("the server's end: %v", err)
		}
	})
	return session
}

// call calls a tool that must not fail, and returns its text.
func call(t *testing.T, s *sdk.ClientSession, name string, args map[string]any) string {
	t.Helper()
	text, failed := try(t, s, name, args)
	if failed {
		t.Fatalf("%s %v: %s", name, args, text)
	}
	return text
}

func try(t *testing.T, s *sdk.ClientSession, name string, args map[string]any) (text string, failed bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := s.CallTool(ctx, &sdk.CallToolParams{Name: name, Arguments: args})
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	part, ok := r.Content[0].(*sdk.TextContent)
	if !ok {
		t.Fatalf("%s: %+v, want text first", name, r.Content)
	}
	return part.Text, r.IsError
}

// TestTask has a scripted agent do a piece of work with tools alone: clone a repository,
// find a test that fails, mend it, see it pass, commit and push.
func TestTask(t *testing.T) {
	t.Parallel()
	project := t.TempDir()
	git(t, project, "init", "-q", "-b", "main", "work")
	work := filepath.Join(project, "work")
	for name, content := range map[string]string{
		"sums.py":      "def total(values):\n    result = 0\n    for v in values[1:]:\n        result += v\n    return result\n",
		"test_sums.py": "import unittest\nfrom sums import total\n\nclass T(unittest.TestCase):\n    def test_total(self):\n        self.assertEqual(total([1, 2, 3]), 6)\n",
	} {
		if err := os.WriteFile(filepath.Join(work, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	git(t, work, "add", ".")
	git(t, work, "-c", "user.name=a", "-c", "user.email=a@b", "commit", "-q", "-m", "first")
	git(t, project, "clone", "-q", "--bare", "work", "shared.git")

	s := connect(t, "--tools", "default,git", "-v", filepath.Join(project, "shared.git")+":/shared.git:rw")
	call(t, s, "git_clone", map[string]any{"url": "file:///shared.git", "destination": "repo"})
	text, failed := try(t, s, "shell_exec", map[string]any{"command": "python3 -m unittest", "exec_dir": "repo"})
	if !failed || !strings.Contains(text, "AssertionError: 5 != 6") {
		t.Fatalf("the test before it is mended: %s", text)
	}
	if text := call(t, s, "grep", map[string]any{"pattern": `values\[`, "path": "repo"}); !strings.Contains(text, "sums.py:3:") {
		t.Errorf("grep: %s", text)
	}
	call(t, s, "file_edit", map[string]any{"file": "repo/sums.py", "old_str": "values[1:]", "new_str": "values"})
	if text := call(t, s, "shell_exec", map[string]any{"command": "python3 -m unittest", "exec_dir": "repo"}); !strings.Contains(text, "OK") {
		t.Errorf("the test after it is mended: %s", text)
	}
	call(t, s, "git_commit", map[string]any{"repo_path": "repo", "message": "Add up all values", "files": []string{"sums.py"}})
	call(t, s, "git_push", map[string]any{"repo_path": "repo"})
	if log := git(t, filepath.Join(project, "shared.git"), "show", "--format=%s", "main"); !strings.HasPrefix(log, "Add up all values") || !strings.Contains(log, "+    for v in values:") {
		t.Errorf("what was pushed: %s", log)
	}
}

func git(t *testing.T, dir string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "git", args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("git %v: %v: %s", args, err, out)
	}
	return string(out)
}

// TestOffer looks at what a client sees: tools, their schemas, resources.
func TestOffer(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	s := connectIn(t, dir, "--tools", "file,shell")
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, d := range list.Tools {
		names[d.Name] = true
		if d.Annotations == nil || d.InputSchema == nil || d.Description == "" {
			t.Errorf("%+v is not complete", d)
		}
	}
	if !names["file_read"] || !names["shell_exec"] || names["grep"] {
		t.Errorf("the tools of two categories: %v", names)
	}
	if text, failed := try(t, s, "file_read", map[string]any{"file": "none"}); !failed || !strings.HasPrefix(text, "ERROR: file not found") {
		t.Errorf("a file that is not there: %s", text)
	}
	// What is gone is a program, and not the sandbox.
	call(t, s, "file_write", map[string]any{"file": "kept", "content": "still here"})
	call(t, s, "shell_exec", map[string]any{"command": "true", "background": true})
	call(t, s, "shell_wait", nil)
	if text, failed := try(t, s, "shell_write", map[string]any{"input": "x"}); !failed || !strings.Contains(text, "closed") {
		t.Errorf("input of a program that has ended: %s", text)
	}
	if text := call(t, s, "file_read", map[string]any{"file": "kept"}); text != "still here" {
		t.Errorf("afterwards: %s", text)
	}
	trail, err := os.ReadFile(filepath.Join(dir, "state", "tool-calls.jsonl"))
	if err != nil || bytes.Count(trail, []byte("\n")) != 6 || !bytes.Contains(trail, []byte(`"tool":"shell_write"},"result":"gone"`)) || bytes.Contains(trail, []byte("still")) {
		t.Errorf("what is written down: %s, %v", trail, err)
	}
	call(t, s, "shell_exec", map[string]any{"command": "seq 1000000 > many; cat many"})
	r, err := s.CallTool(t.Context(), &sdk.CallToolParams{Name: "shell_exec", Arguments: map[string]any{"command": "seq 100000"}})
	if err != nil {
		t.Fatal(err)
	}
	link, ok := r.Content[len(r.Content)-1].(*sdk.ResourceLink)
	if !ok {
		t.Fatalf("a long output without a link to all of it: %+v", r.Content)
	}
	whole, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: link.URI})
	if err != nil || !strings.HasSuffix(strings.TrimSpace(whole.Contents[0].Text), "100000") {
		t.Errorf("the whole output: %v", err)
	}
	for _, uri := range []string{"sandbox:///none", "sandbox://relative", "file:///etc/passwd"} {
		if _, err := s.ReadResource(t.Context(), &sdk.ReadResourceParams{URI: uri}); err == nil {
			t.Errorf("the resource %s is there", uri)
		}
	}
}
