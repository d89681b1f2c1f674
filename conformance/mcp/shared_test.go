package mcp_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// TestShared has two clients share a sandbox of a server's, and one of them come back.
func TestShared(t *testing.T) {
	t.Parallel()
	env := testengine.Environ(t.TempDir())
	run := func(args ...string) *exec.Cmd {
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), testengine.Path(t), args...)
		cmd.Env, cmd.Stderr = env, os.Stderr
		return cmd
	}
	server := run("serve", "--listen", "none")
	server.Stderr = nil
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGTERM)
		if err := server.Wait(); err != nil {
			t.Errorf("the server: %v", err)
		}
	})
	created := false
	for until := time.Now().Add(patience); !created && time.Now().Before(until); time.Sleep(50 * time.Millisecond) {
		cmd := run("create", "--name", "team")
		cmd.Stderr = nil // until the server answers
		created = cmd.Run() == nil
	}
	if !created {
		t.Fatal("the server makes no sandbox")
	}
	enter := func(name string, more ...string) *sdk.ClientSession {
		session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).
			Connect(t.Context(), &sdk.CommandTransport{Command: run(append([]string{"mcp", "--tools", "all", "--sandbox", "team", "--session", name}, more...)...), TerminateDuration: patience}, nil)
		if err != nil {
			t.Fatal(err)
		}
		return session
	}
	alice, bob := enter("alice"), enter("bob")
	call(t, alice, "file_write", map[string]any{"file": "data.txt", "content": "alice's"})
	call(t, bob, "file_write", map[string]any{"file": "data.txt", "content": "bob's"})
	call(t, alice, "shell_exec", map[string]any{"command": "exec sleep 7654", "background": true})
	for name, args := range map[string]map[string]any{
		"file_read":  {"file": "/sessions/alice/data.txt"},
		"shell_exec": {"command": "cat /sessions/alice/data.txt"},
	} {
		if text, failed := try(t, bob, name, args); !failed || strings.Contains(text, "alice's") {
			t.Errorf("%s: %s", name, text)
		}
	}
	if text := call(t, bob, "process_list", map[string]any{"all": true}); strings.Contains(text, "7654") {
		t.Errorf("the other's programs are listed: %s", text)
	}
	second := enter("alice") // another program, with the same name
	if text, failed := try(t, second, "shell_exec", map[string]any{"command": "true"}); !failed || !strings.Contains(text, "another connection uses session alice") {
		t.Errorf("a second connection with the name of a session: %s", text)
	}
	if err := second.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if text := call(t, alice, "shell_view", nil); !strings.HasPrefix(text, "[RUNNING]") {
		t.Errorf("what a session runs after another connection has tried its name: %s", text)
	}
	if err := alice.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if text, failed := try(t, bob, "shell_exec", map[string]any{"command": "grep -l '[7]654' /proc/[0-9]*/cmdline"}); !failed {
		t.Errorf("what a session ran outlives it: %s", text)
	}
	alice = enter("alice")
	if text := call(t, alice, "file_read", map[string]any{"file": "data.txt"}); text != "alice's" {
		t.Errorf("the file after coming back: %s", text)
	}
	if err := alice.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	alice = enter("alice", "--remove-session")
	call(t, alice, "file_read", map[string]any{"file": "data.txt"})
	if err := alice.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	alice = enter("alice")
	if text, failed := try(t, alice, "file_read", map[string]any{"file": "data.txt"}); !failed {
		t.Errorf("a session that was removed has its file: %s", text)
	}
	if text := call(t, bob, "file_read", map[string]any{"file": "data.txt"}); text != "bob's" {
		t.Errorf("the other's file after a session was removed: %s", text)
	}
	for _, s := range []*sdk.ClientSession{alice, bob} {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
}
