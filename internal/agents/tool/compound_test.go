package tool_test

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// TestCompound runs the tools that have an action as their input.
func TestCompound(t *testing.T) {
	t.Parallel()
	box := newBox(t)
	for name, f := range map[string]func(*testing.T, kit){
		"bash": testBash, "shell": testSandboxShell, "files": testSandboxFiles, "git": testGitVariables, "editor": testEditor, "state": testOverview, "exclusion": testExclusion,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, newKit(t, box, tool.SessionOptions{ID: name, Dir: "/workspace/" + name}))
		})
	}
	t.Run("page", func(t *testing.T) {
		t.Parallel()
		testPage(t, box)
	})
}

func testBash(t *testing.T, k kit) {
	t.Helper()
	k.want("bash", fields{"command": "cd /tmp; X='$kept'"}, "[SUCCESS]")
	k.want("shell_exec", fields{"command": "echo $X in $PWD"}, "$kept in /tmp")
	if r := k.want("bash", fields{"command": "echo bad; exit 3"}, "[FAILED (exit 3)]\nbad"); !r.Failed {
		t.Error("a command that fails is no failure")
	}
	k.refused("bash", nil, sandpit.NotFound)
	k.want("shell_exec", fields{"command": "echo on; sleep 1000", "background": true})
	k.want("shell_wait", fields{"seconds": 0.3})
	k.want("bash", fields{"command": ""}, "[RUNNING]", "on")
	k.want("bash", fields{"command": "ctrl+c"}, "Process terminated")
	k.want("bash", fields{"command": "Y=1"})
	k.want("bash", fields{"restart": true}, "The shell was restarted")
	k.want("bash", fields{"command": "echo .$Y", "restart": true}, "[SUCCESS]\n.")
	k.refused("bash", fields{"cmd": "x"}, sandpit.Invalid)
}

func testSandboxShell(t *testing.T, k kit) {
	t.Helper()
	k.want("sandbox_shell", fields{"action": "execute_command", "command": "mkdir -p \"a b\"; echo `pwd`; (exit 4)", "blocking": true}, "[FAILED (exit 4)]\n/workspace/shell")
	k.want("sandbox_shell", fields{"action": "execute_command", "command": "pwd", "folder": "a b", "blocking": true, "session_name": "other"}, "/workspace/shell/a b")
	k.want("sandbox_shell", fields{"action": "execute_command", "command": "sleep 60", "blocking": true, "timeout": 0.5}, "timeout after 0.5 s")
	r := k.want("sandbox_shell", fields{"action": "execute_command", "command": "echo on; sleep 1000"}, "[STARTED]")
	name, ok := field(t, r, "session_id").(string)
	if !ok || !strings.HasPrefix(name, "main/") {
		t.Fatalf("%+v", r.Data)
	}
	k.want("shell_wait", fields{"seconds": 0.3})
	k.want("sandbox_shell", fields{"action": "check_command_output", "session_name": name}, "[RUNNING]", "on")
	k.want("sandbox_shell", fields{"action": "list_commands"}, name, "other", "running")
	k.want("sandbox_shell", fields{"action": "check_command_output", "session_name": name, "kill_session": true}, "on", "Process terminated")
	k.want("sandbox_shell", fields{"action": "execute_command", "command": "sleep 1000", "session_name": "third"})
	k.want("sandbox_shell", fields{"action": "terminate_command", "session_name": "third"}, "Process terminated")
	k.refused("sandbox_shell", fields{"action": "check_command_output", "session_name": "none"}, sandpit.NotFound)
	k.refused("sandbox_shell", fields{"action": "check_command_output"}, sandpit.Invalid, "session_name is required for check_command_output")
	k.refused("sandbox_shell", fields{"action": "execute_command", "blocking": true}, sandpit.Invalid, "command is required")
	k.refused("sandbox_shell", fields{"action": "execute_command", "command": "x", "session_name": "$(touch /tmp/pwned)"}, sandpit.Invalid)
	k.refused("sandbox_shell", fields{"action": "dance"}, sandpit.Invalid)
}

func testSandboxFiles(t *testing.T, k kit) {
	t.Helper()
	k.want("sandbox_files", fields{"action": "create_file", "file_path": "d/run.sh", "file_contents": "\techo one\n", "permissions": "755"}, "d/run.sh now has 10 bytes")
	k.want("shell_exec", fields{"command": "stat -c %a d/run.sh"}, "755")
	k.refused("sandbox_files", fields{"action": "create_file", "file_path": "d/run.sh", "file_contents": "x"}, sandpit.AlreadyExists, "full_file_rewrite")
	k.refused("sandbox_files", fields{"action": "full_file_rewrite", "file_path": "none", "file_contents": "x"}, sandpit.NotFound, "create_file")
	k.want("sandbox_files", fields{"action": "full_file_rewrite", "file_path": "d/run.sh", "file_contents": "\techo two\n\techo two\n"})
	k.want("shell_exec", fields{"command": "stat -c %a d/run.sh"}, "755")
	k.refused("sandbox_files", fields{"action": "str_replace", "file_path": "d/run.sh", "old_str": "\techo", "new_str": ""}, sandpit.Conflict, "lines 1, 2")
	k.want("sandbox_files", fields{"action": "str_replace", "file_path": "d/run.sh", "old_str": "\techo two\n\techo", "new_str": ""}, "Replaced 1")
	if r := k.want("sandbox_files", fields{"action": "read_file", "file_path": "d/run.sh", "start_line": 0, "end_line": 1}); r.Text != " two\n" {
		t.Errorf("%q", r.Text)
	}
	k.want("sandbox_files", fields{"action": "create_file", "path": "empty", "file_contents": ""}, "0 bytes")
	k.want("sandbox_files", fields{"action": "list_files"}, "d/", "empty", "2 entries")
	k.want("sandbox_files", fields{"action": "delete_file", "file_path": "empty"}, "Deleted")
	k.refused("sandbox_files", fields{"action": "delete_file", "file_path": "empty"}, sandpit.NotFound)
	k.refused("sandbox_files", fields{"action": "delete_file", "file_path": "d"}, sandpit.Conflict)
	k.refused("sandbox_files", fields{"action": "create_file", "file_path": "x"}, sandpit.Invalid, "file_contents is required")
	k.refused("sandbox_files", fields{"action": "str_replace", "file_path": "x", "old_str": "a"}, sandpit.Invalid, "new_str")
	k.refused("sandbox_files", fields{"action": "read_file"}, sandpit.Invalid, "file_path is required")
	for _, p := range []string{"4755", "9", "-1", "rwx"} {
		k.refused("sandbox_files", fields{"action": "create_file", "file_path": "x", "file_contents": "", "permissions": p}, sandpit.Invalid)
	}
	k.refused("sandbox_files", fields{"action": "dance", "file_path": "x"}, sandpit.Invalid)
}

// testGitVariables has variables of the session that git would take instead of the credentials of a call.
func testGitVariables(t *testing.T, k kit) {
	t.Helper()
	needs(t, "git", "--version")
	serveGit(k, 8126)
	const url = "http://127.0.0.1:8126/repo.git"
	for name, value := range map[string]string{
		"GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "http.extraHeader", "GIT_CONFIG_VALUE_0": "Authorization: Basic d3Jvbmc6d3Jvbmc=",
		"GIT_ALLOW_PROTOCOL": "http:https:file", "GIT_TERMINAL_PROMPT": "1",
	} {
		k.want("env_set", fields{"name": name, "value": value})
	}
	right := fields{"username": "me", "password": "pass-word-123"}
	k.refused("git_clone", fields{"url": url}, sandpit.Unauthenticated)
	k.want("git_clone", fields{"url": url, "destination": "copy", "credentials": right}, "Cloned into")
	k.want("shell_exec", fields{"command": "git -C copy checkout -q -b main || git -C copy branch -m main"})
	k.want("file_write", fields{"file": "copy/a", "content": "x"})
	k.want("git_commit", fields{"repo_path": "copy", "message": "first"}, "Committed")
	k.refused("git_push", fields{"repo_path": "copy", "branch": "main"}, sandpit.Unauthenticated)
	k.want("git_push", fields{"repo_path": "copy", "branch": "main", "credentials": right}, "refs/heads/main")
}

// testExclusion changes one file by many calls at a time: no change is lost, and one of several
// creations succeeds.
func testExclusion(t *testing.T, k kit) {
	t.Helper()
	const calls = 16
	var all sync.WaitGroup
	var created atomic.Int32
	for i := range calls {
		all.Go(func() {
			if r := k.call("file_write", fields{"file": "log", "content": fmt.Sprintf("line %d\n", i), "append": true}); r.Problem != nil {
				t.Errorf("line %d: %+v", i, r.Problem)
			}
		})
		all.Go(func() {
			if r := k.call("sandbox_files", fields{"action": "create_file", "file_path": "once", "file_contents": "x"}); r.Problem == nil && !r.Failed {
				created.Add(1)
			}
		})
	}
	all.Wait()
	text := k.want("file_read", fields{"file": "log"}).Text
	for i := range calls {
		if !strings.Contains(text, fmt.Sprintf("line %d\n", i)) {
			t.Errorf("line %d is lost: %s", i, text)
		}
	}
	if created.Load() != 1 {
		t.Errorf("the file was created %d times", created.Load())
	}
}
