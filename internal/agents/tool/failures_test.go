package tool_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// testFailures has tools fail as they can with inputs that fit, and give no more than they may.
func testFailures(t *testing.T, k kit) {
	t.Helper()
	for i := range 200 {
		k.want("env_set", fields{"name": fmt.Sprint("V", i), "value": "x"})
	}
	k.refused("env_set", fields{"name": "ONE_TOO_MANY", "value": "x"}, sandpit.Exhausted)
	k.want("shell_exec", fields{"command": "mkdir dir; echo text > file; for i in $(seq 3000); do echo match $i > dir/$i.txt; done; head -c 34000000 /dev/zero > huge"}, "[SUCCESS]")
	for _, tc := range []struct {
		tool string
		in   fields
		code sandpit.Code
	}{
		{"file_read", fields{"file": "dir"}, sandpit.Invalid},
		{"file_read", fields{"file": "huge"}, sandpit.Exhausted},
		{"file_write", fields{"file": "dir", "content": "x"}, sandpit.Invalid},
		{"file_write", fields{"file": "file/below", "content": "x"}, sandpit.Invalid},
		{"file_write", fields{"file": "huge", "content": "x", "append": true}, sandpit.Exhausted},
		{"file_edit", fields{"file": "none", "old_str": "a", "new_str": "b"}, sandpit.NotFound},
		{"file_edit", fields{"file": "huge", "old_str": "a", "new_str": "b"}, sandpit.Exhausted},
		{"file_upload", fields{"path": "dir", "content": "eA=="}, sandpit.Invalid},
		{"file_upload", fields{"path": "x", "content": "not Base64"}, sandpit.Invalid},
		{"file_download", fields{"path": "none"}, sandpit.NotFound},
		{"file_download", fields{"path": "huge"}, sandpit.Exhausted},
		{"file_list", fields{"path": "file"}, sandpit.Invalid},
		{"file_search", fields{"file": "file", "regex": "("}, sandpit.Invalid},
		{"file_find", fields{"glob": "*", "path": "none"}, sandpit.NotFound},
		{"file_find", fields{"glob": ""}, sandpit.Invalid},
		{"glob", fields{"pattern": "*", "path": "none"}, sandpit.NotFound},
		{"glob", fields{"pattern": strings.Repeat("x", 5000)}, sandpit.Invalid},
		{"grep", fields{"pattern": "x", "path": "none"}, sandpit.NotFound},
		{"shell_write", fields{"input": "x"}, sandpit.NotFound},
		{"shell_wait", nil, sandpit.NotFound},
		{"shell_kill", nil, sandpit.NotFound},
		{"shell_interactive", fields{"action": "send", "input": "x"}, sandpit.NotFound},
		{"git_clone", fields{"url": "/none"}, sandpit.Conflict},
		{"git_commit", fields{"repo_path": "dir", "message": "x"}, sandpit.NotFound},
		{"git_push", fields{"repo_path": "dir"}, sandpit.NotFound},
		{"str_replace_editor", fields{"command": "view", "path": "/workspace/failures/huge"}, sandpit.Exhausted},
	} {
		k.refused(tc.tool, tc.in, tc.code)
	}
	k.want("shell_exec", fields{"command": "cat file; ls dir | wc -l"}, "text\n3000")

	if r := k.want("file_list", fields{"path": "dir"}, "3000 entries"); len(entries(t, field(t, r, "files"))) != 2000 {
		t.Errorf("%d files are listed", len(entries(t, field(t, r, "files"))))
	}
	if r := k.want("glob", fields{"pattern": "dir/*"}, "there are more"); len(entries(t, field(t, r, "files"))) != 2000 {
		t.Errorf("%d files are found", len(entries(t, field(t, r, "files"))))
	}
	if r := k.want("grep", fields{"pattern": "match", "max_results": 7}, "there are more"); len(entries(t, field(t, r, "matches"))) != 7 {
		t.Errorf("%d lines are found", len(entries(t, field(t, r, "matches"))))
	}
	if r := k.want("sandbox_packages", fields{"language": "python", "limit": 1}); len(entries(t, field(t, r, "packages"))) > 1 {
		t.Errorf("packages: %s", r.Text)
	}
}

func entries(t *testing.T, list any) []any {
	t.Helper()
	all, ok := list.([]any)
	if !ok {
		t.Fatalf("%v is no list", list)
	}
	return all
}
