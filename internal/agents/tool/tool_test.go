package tool_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestDefinitions looks at all tools: names, words, schemas.
func TestDefinitions(t *testing.T) {
	t.Parallel()
	all, err := tool.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	categories := map[tool.Category]int{}
	for _, d := range all.Tools() {
		categories[d.Category]++
		data, err := json.Marshal(d.Schema())
		if err != nil {
			t.Fatal(err)
		}
		var schema struct {
			Type       string                                        `json:"type"`
			Properties map[string]struct{ Description, Type string } `json:"properties"`
			Additional any                                           `json:"additionalProperties"`
		}
		if err := json.Unmarshal(data, &schema); err != nil {
			t.Fatal(err)
		}
		if schema.Type != "object" || schema.Additional == nil {
			t.Errorf("%s: %s: want a closed object", d.Name, data)
		}
		for name, p := range schema.Properties {
			if p.Description == "" || p.Type == "" {
				t.Errorf("%s: the field %s has no description or no type: %+v", d.Name, name, p)
			}
		}
		if d.Title == "" || d.Description == "" || d.Timeout <= 0 {
			t.Errorf("%s is not complete", d.Name)
		}
	}
	for _, c := range tool.Categories() {
		if categories[c] == 0 {
			t.Errorf("the category %s is empty", c)
		}
		some, err := tool.New(nil, c)
		if err != nil || len(some.Tools()) != categories[c] {
			t.Errorf("category %s alone: %d tools, %v; want %d", c, len(some.Tools()), err, categories[c])
		}
	}
	if _, err := tool.New(nil, "nonsense"); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("an unknown category: %v", err)
	}
}

func TestTools(t *testing.T) {
	t.Parallel()
	box := newBox(t)
	for name, f := range map[string]func(*testing.T, kit){
		"files": testFiles, "search": testSearch, "shell": testShell, "background": testBackground,
		"order": testOrder, "git details": testGitDetails, "request details": testRequestDetails,
		"interactive": testInteractive, "git": testGit, "private repository": testPrivate, "web": testWeb, "system": testSystem, "bounds": testBounds, "secrets": testSecrets, "inputs": testInputs, "failures": testFailures,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			id := strings.ReplaceAll(name, " ", "-")
			f(t, newKit(t, box, tool.SessionOptions{ID: id, Dir: "/workspace/" + id}))
		})
	}
	t.Run("shared", func(t *testing.T) {
		t.Parallel()
		testShared(t, box)
	})
}

func testFiles(t *testing.T, k kit) {
	t.Helper()
	k.refused("file_read", fields{"file": "a.txt"}, sandpit.NotFound)
	k.want("file_write", fields{"file": "a.txt", "content": "one\ntwo\nthree\n"}, "Successfully wrote 14 bytes to a.txt")
	k.want("file_write", fields{"path": "a.txt", "content": "Zm91cgo=", "encoding": "base64", "append": true}, "5 bytes")
	if r := k.want("file_read", fields{"file": "a.txt"}); r.Text != "one\ntwo\nthree\nfour\n" {
		t.Errorf("read: %q", r.Text)
	}
	if r := k.want("file_read", fields{"file": "a.txt", "start_line": 1, "end_line": 3}); r.Text != "two\nthree\n" {
		t.Errorf("lines 1 to 3: %q", r.Text)
	}
	k.refused("file_read", fields{"file": "a.txt", "start_line": 9}, sandpit.Invalid, "the file has 4")
	k.want("file_write", fields{"file": "empty", "content": ""}, "0 bytes")
	k.want("file_read", fields{"file": "empty"}, "(empty)")
	k.refused("file_write", fields{"file": "x", "content": "?", "encoding": "base64"}, sandpit.Invalid, "not Base64")
	k.refused("file_write", fields{"file": "x", "content": "?", "encoding": "latin1"}, sandpit.Invalid)
	k.refused("file_write", fields{"file": "x"}, sandpit.Invalid, "content")

	k.want("file_write", fields{"file": "tabs", "content": "\ta\n\tb\n\ta\n"})
	k.refused("file_edit", fields{"file": "tabs", "old_str": "\ta", "new_str": ""}, sandpit.Conflict, "lines 1, 3")
	k.refused("file_edit", fields{"file": "tabs", "old_str": "nothing", "new_str": ""}, sandpit.NotFound)
	k.refused("file_edit", fields{"file": "tabs", "old_str": "", "new_str": "x"}, sandpit.Invalid)
	k.want("file_edit", fields{"file": "tabs", "old_str": "\tb\n", "new_str": ""}, "Replaced 1")
	k.want("file_edit", fields{"file": "tabs", "old_str": "\ta", "new_str": "A", "replace_all": true}, "Replaced 2")
	if r := k.want("file_download", fields{"path": "tabs"}); r.Text != "A\nA\n" {
		t.Errorf("download: %q", r.Text)
	}
	k.want("file_upload", fields{"path": "bin", "content": "AAEC/w=="})
	k.want("file_download", fields{"path": "bin"}, "[BASE64]AAEC/w==")
	k.refused("file_read", fields{"file": "bin"}, sandpit.Invalid, "not a text file")
	k.want("shell_exec", fields{"command": "head -c 100000 /dev/zero > big"})
	k.refused("file_download", fields{"path": "big"}, sandpit.Exhausted)

	k.want("file_write", fields{"file": "workspacefoo/a", "content": "x"})
	k.want("file_write", fields{"file": "/workspace/files/b/../c", "content": "x"})
	k.want("shell_exec", fields{"command": "ls workspacefoo c"}, "c\n", "workspacefoo:\na")
	k.want("file_write", fields{"file": "d/e/f.txt", "content": "x"})
	k.want("file_write", fields{"file": "d/.hidden", "content": "x"})
	if r := k.want("file_list", fields{"path": "d", "recursive": true}, "e/\n", "e/f.txt  1 bytes", "2 entries"); strings.Contains(r.Text, "hidden") {
		t.Errorf("hidden files are listed: %s", r.Text)
	}
	k.want("file_list", fields{"path": "d", "show_hidden": true}, ".hidden", "2 entries")
	k.refused("file_list", fields{"path": "none"}, sandpit.NotFound)
	k.refused("file_list", fields{"sort_by": "luck"}, sandpit.Invalid)
	k.refused("file_delete", fields{"path": "d"}, sandpit.Conflict, "recursive")
	k.want("file_delete", fields{"path": "d", "recursive": true}, "Deleted d")
	for _, p := range []string{".", "..", "/", "/workspace", "../files"} {
		k.refused("file_delete", fields{"path": p, "recursive": true}, sandpit.PermissionDenied)
	}
	k.refused("file_delete", fields{"path": "d"}, sandpit.NotFound)
}

func testSearch(_ *testing.T, k kit) {
	k.want("file_write", fields{"file": "src/a.go", "content": "package a\n\nfunc One() {}\nfunc Two() {}\n"})
	k.want("file_write", fields{"file": "src/deep/b.go", "content": "package b\nvar One = 1\n"})
	k.want("file_write", fields{"file": "src/node_modules/c.go", "content": "One\n"})
	k.want("file_write", fields{"file": "quo'te; touch pwned.txt", "content": "One\n"})
	k.want("grep", fields{"pattern": `func \w+`, "path": "src"}, "a.go:3:func One() {}", "a.go:4:")
	k.want("grep", fields{"pattern": "one", "case_insensitive": true, "file_glob": "*.go", "output_mode": "count"}, "src/a.go:1", "src/deep/b.go:1")
	k.want("grep", fields{"pattern": "Two", "context": 1}, "src/a.go-3-func One", "src/a.go:4:")
	k.want("grep", fields{"pattern": "One", "all": true, "output_mode": "files_with_matches"}, "node_modules")
	k.refused("grep", fields{"pattern": "("}, sandpit.Invalid)
	k.want("grep", fields{"pattern": "nowhere"}, "No matches")
	k.want("file_search", fields{"file": "src/a.go", "regex": "Two"}, "a.go:4:func Two() {}")
	k.want("file_search", fields{"file": "quo'te; touch pwned.txt", "regex": "One"}, ":1:One")
	k.refused("file_search", fields{"file": "none", "regex": "x"}, sandpit.NotFound)
	k.want("file_write", fields{"file": "many.py", "content": strings.Repeat("def f\n", 1500)})
	k.want("grep", fields{"pattern": "def", "path": "many.py"}, "many.py:50:def f", "there are more matches")
	k.want("grep", fields{"pattern": "def", "path": "many.py", "output_mode": "count"}, "many.py:1500")
	k.want("file_search", fields{"file": "many.py", "regex": "def"}, "many.py:1000:def f", "there are more matches")
	k.want("grep", fields{"pattern": "def|package", "file_glob": "*.go", "file_type": "py"}, "No matches")
	k.want("glob", fields{"pattern": "*.py", "path": "many.py"}, "many.py")
	k.want("file_find", fields{"glob": "*.go", "path": "many.py"}, "No files match")
	k.want("glob", fields{"pattern": "**/*.go"}, "src/a.go", "src/deep/b.go")
	k.want("glob", fields{"pattern": "src/*"}, "src/a.go", "src/deep/")
	k.want("file_find", fields{"glob": "b.*"}, "src/deep/b.go")
	k.want("file_find", fields{"glob": "*.{md,go}", "path": "src"}, "a.go")
	k.want("file_find", fields{"glob": "pwned.txt"}, "No files match")
}

func testShell(_ *testing.T, k kit) {
	var group sync.WaitGroup
	for range 5 { // the shell is made for the first, and the others wait for it
		group.Go(func() { k.want("shell_exec", fields{"command": "echo $((6 * 7))"}, "[SUCCESS]\n42") })
	}
	group.Wait()
	k.want("shell_exec", fields{"command": "cd /tmp; X=kept"}, "[SUCCESS]\n(no output)")
	k.want("shell_exec", fields{"command": "echo $X in $PWD"}, "[SUCCESS]\nkept in /tmp")
	k.want("shell_exec", fields{"command": "pwd", "exec_dir": "/usr"}, "/usr")
	k.want("shell_exec", fields{"command": "pwd"}, "/tmp")
	k.want("shell_exec", fields{"command": "echo $X.", "session_id": "other"}, "[SUCCESS]\n.")
	if r := k.want("shell_exec", fields{"command": "echo bad >&2; false"}, "[FAILED (exit 1)]\nbad"); !r.Failed {
		k.Error("a command that fails is no failure")
	}
	k.want("shell_exec", fields{"command": "sleep 60", "timeout": 0.5}, "timeout after 0.5 s")
	k.want("shell_exec", fields{"command": "echo continues"}, "continues")
	k.refused("shell_exec", fields{"command": "if"}, sandpit.Invalid)
	k.refused("shell_exec", fields{"command": "x", "timeout": 1e9}, sandpit.Invalid)
	k.refused("shell_exec", fields{"command": "x", "session_id": "../x"}, sandpit.Invalid)
	k.refused("shell_exec", fields{"comand": "x"}, sandpit.Invalid)
	k.want("shell_sessions", nil, "main", "other")
}

func testBackground(t *testing.T, k kit) {
	t.Helper()
	k.refused("shell_view", nil, sandpit.NotFound)
	k.want("shell_exec", fields{"command": "echo ready; read line; echo got $line; exit 3", "background": true}, "[STARTED]")
	k.want("shell_write", fields{"input": "it"}, "Input sent")
	if r := k.want("shell_wait", fields{"seconds": 20}, "[FAILED (exit 3)]", "ready", "got it"); !r.Failed {
		t.Error("its failure is not reported")
	}
	k.want("shell_exec", fields{"command": "sleep 1000", "background": true})
	k.want("shell_wait", fields{"seconds": 0.2}, "Still running after 0.2s")
	k.want("shell_view", nil, "[RUNNING]")
	k.want("shell_kill", nil, "Process terminated")
	k.want("shell_wait", fields{"seconds": 10}, "exit 137")
	k.refused("shell_view", fields{"session_id": "main/none"}, sandpit.NotFound)
	k.want("shell_sessions", nil, "ended with exit code 137")
}

func testInteractive(_ *testing.T, k kit) {
	k.want("shell_interactive", fields{"action": "start", "command": "stty size; cat", "cols": 100, "rows": 30, "wait": 10}, "30 100")
	k.want("shell_interactive", fields{"action": "send", "input": "hello"}, "hello")
	k.want("shell_interactive", fields{"action": "resize", "cols": 90, "rows": 20}, "90 columns")
	k.want("shell_interactive", fields{"action": "read"}, "hello", "running")
	k.want("shell_interactive", fields{"action": "send", "input": "\x03", "press_enter": false, "wait": 10})
	k.want("shell_interactive", fields{"action": "close"})
	k.refused("shell_interactive", fields{"action": "dance"}, sandpit.Invalid)
}

func testGit(t *testing.T, k kit) {
	t.Helper()
	k.want("shell_exec", fields{"command": `git init -q -b trunk origin && git -C origin -c user.name=a -c user.email=a@b commit -q --allow-empty -m first && git -C origin config receive.denyCurrentBranch updateInstead`}, "[SUCCESS]")
	k.want("git_clone", fields{"repo_url": k.session.Dir() + "/origin", "target_path": "copy"}, "trunk at")
	k.want("git_status", fields{"repo_path": "copy"}, "On trunk, 0 ahead of", "nothing to commit")
	k.want("git_commit", fields{"repo_path": "copy", "message": "none"}, "Nothing to commit")
	k.want("file_write", fields{"file": "copy/new file.txt", "content": "x"})
	k.want("git_status", fields{"repo_path": "copy"}, "untracked:\n  new file.txt")
	k.want("git_commit", fields{"repo_path": "copy", "message": "-m; $(touch /tmp/pwned)", "files": []string{"new file.txt"}}, "Committed ")
	k.want("git_status", fields{"repo_path": "copy"}, "1 ahead")
	k.want("git_push", fields{"repo_path": "copy"}, "Pushed refs/heads/trunk")
	k.want("shell_exec", fields{"command": "git -C origin log --format='%s by %an' -1; ls /tmp/pwned"}, "-m; $(touch /tmp/pwned) by Agent", "No such file")
	k.refused("git_clone", fields{"url": "--upload-pack=touch /tmp/pwned", "destination": "x"}, sandpit.Invalid)
	k.refused("git_clone", fields{"url": "ext::sh -c touch% /tmp/pwned", "destination": "x"}, sandpit.Conflict, "not allowed")
	k.refused("git_clone", fields{"url": k.session.Dir() + "/origin", "destination": "copy"}, sandpit.Conflict)
	k.refused("git_status", fields{"repo_path": "/tmp"}, sandpit.NotFound)
	k.refused("git_commit", fields{"repo_path": "copy", "message": " "}, sandpit.Invalid)
	k.refused("git_push", fields{"repo_path": "copy", "branch": "+trunk:trunk"}, sandpit.Invalid)
	k.want("shell_exec", fields{"command": "ls /tmp/pwned || true"}, "No such file")
}

func testWeb(_ *testing.T, k kit) {
	k.want("shell_exec", fields{"command": "mkdir -p site && echo 'hello web' > site/index.html && cd site && exec python3 -m http.server --bind 127.0.0.1 8123", "background": true})
	k.want("shell_exec", fields{"command": "for i in $(seq 100); do (echo > /dev/tcp/127.0.0.1/8123) 2>/dev/null && break; sleep 0.1; done"})
	k.want("http_request", fields{"url": "http://127.0.0.1:8123/"}, "200 http://127.0.0.1:8123/", "hello web")
	if r := k.want("http_request", fields{"url": "http://127.0.0.1:8123/none"}, "404"); !r.Failed {
		k.Error("404 is no failure")
	}
	k.want("http_request", fields{"url": "http://127.0.0.1:8123/", "method": "POST", "data": "x"}, "501")
	k.refused("http_request", fields{"url": "http://127.0.0.1:1/"}, sandpit.Unavailable)
	k.refused("http_request", fields{"url": "http://sandpit.invalid/"}, sandpit.Unavailable, "cannot find the host")
	k.refused("http_request", fields{"url": "file:///etc/passwd"}, sandpit.Invalid)
	k.refused("http_request", fields{"url": "http://127.0.0.1:8123/", "method": "G ET"}, sandpit.Invalid)
	// The machine's own servers are not the sandbox's.
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	k.refused("http_request", fields{"url": server.URL}, sandpit.Unavailable)
}

func testSystem(t *testing.T, k kit) {
	t.Helper()
	k.want("env_get", nil, "No variables")
	k.want("shell_exec", fields{"command": "true"})
	k.want("env_set", fields{"name": "QUOTED", "value": "it's $HOME; \"x\"\n2"})
	k.want("shell_exec", fields{"command": `printf %s "$QUOTED"`}, "it's $HOME; \"x\"\n2")
	k.want("shell_exec", fields{"command": `printf %s "$QUOTED"`, "session_id": "new"}, "it's $HOME; \"x\"\n2")
	k.want("env_get", fields{"name": "QUOTED"}, "QUOTED=it's")
	k.want("env_set", fields{"name": "TOKEN", "value": "s3cret-value", "secret": true})
	k.want("env_get", nil, "TOKEN=***")
	k.lacks(k.want("shell_exec", fields{"command": "env | grep TOKEN; sleep 0 $TOKEN"}, "TOKEN=***"), "s3cret")
	for i, value := range []string{"secret-of-", "secret-of-mine", "secret-of-mine-\"quoted\"<&>"} { // each is the beginning of the next
		k.want("env_set", fields{"name": fmt.Sprintf("TOKEN%d", i), "value": value, "secret": true})
	}
	for range 5 { // in any order
		r := k.want("shell_exec", fields{"command": `printf '%s\n' "$TOKEN0" "$TOKEN1" "$TOKEN2"`}, "[SUCCESS]\n***\n***\n***")
		k.lacks(r, "mine")
		k.lacks(r, "quoted")
	}
	k.refused("env_get", fields{"name": "NONE"}, sandpit.NotFound)
	k.refused("env_set", fields{"name": "A B", "value": "x"}, sandpit.Invalid)
	k.refused("env_set", fields{"name": "A", "value": strings.Repeat("x", 40<<10)}, sandpit.Invalid)
	k.refused("env_set", fields{"name": "A", "value": "abc", "secret": true}, sandpit.Invalid)

	k.want("shell_exec", fields{"command": "sleep 987", "background": true})
	k.want("process_list", nil, "sleep 987")
	k.want("workspace_info", nil, "/workspace/system")
	k.want("workspace_health", nil, "healthy")
	k.want("sandbox_health", nil, "healthy")
	k.want("sandbox_context", nil, "python: Python 3", "git: git version")
	k.want("sandbox_packages", fields{"language": "python", "limit": 1}, " packages")
	k.refused("sandbox_packages", fields{"language": "cobol"}, sandpit.Invalid)
	k.refused("no_such_tool", nil, sandpit.NotFound)
	if r := k.tools.Invoke(t.Context(), k.session, "env_get", []byte("[1]")); r.Problem == nil || r.Problem.Code != sandpit.Invalid {
		t.Errorf("an input that is no object: %+v", r)
	}
	for _, c := range *k.calls {
		if c.Session != "system" || c.Took <= 0 || c.Tool == "" {
			t.Errorf("an audit of %+v", c)
		}
	}
}

func testBounds(t *testing.T, k kit) {
	t.Helper()
	r := k.want("shell_exec", fields{"command": "seq 100000"}, "[SUCCESS]\n1\n2\n", "\n100000\n", "bytes in total")
	if len(r.Text) > 31_000 || r.SavedTo == "" {
		t.Errorf("%d bytes, saved to %q", len(r.Text), r.SavedTo)
	}
	k.want("shell_exec", fields{"command": "sed -n 50001,50002p " + r.SavedTo}, "50000\n50001")
	k.want("shell_exec", fields{"command": "git init -q . && git status --porcelain"}, "(no output)")
	r = k.want("shell_exec", fields{"command": `printf '\377\376bad'`}, "bad")
	if data, err := json.Marshal(r); err != nil || !json.Valid(data) {
		t.Errorf("bytes that are no text: %v", err)
	}
	if r := k.tools.Invoke(t.Context(), k.session, "file_write", make([]byte, 17<<20)); r.Problem == nil || r.Problem.Code != sandpit.Invalid {
		t.Errorf("an input of 17 MiB: %+v", r.Problem)
	}
}

// testShared has two sessions in one sandbox, each a user of its own.
func testShared(t *testing.T, box sandpit.Instance) {
	t.Helper()
	setup := newKit(t, box, tool.SessionOptions{ID: "setup"})
	setup.want("shell_exec", fields{"command": `for id in 20001 20002; do mkdir -p /sessions/$id && chown $id:$id /sessions/$id && chmod 700 /sessions/$id; done`}, "[SUCCESS]")
	a := newKit(t, box, tool.SessionOptions{ID: "a", Dir: "/sessions/20001", User: "20001:20001", Confine: true})
	b := newKit(t, box, tool.SessionOptions{ID: "b", Dir: "/sessions/20002", User: "20002:20002", Confine: true})
	a.want("env_set", fields{"name": "MARK", "value": "a's own secret", "secret": true})
	a.want("file_write", fields{"file": "data.txt", "content": "a's own data"})
	b.want("file_write", fields{"file": "data.txt", "content": "b's own data"})
	pid := a.want("shell_exec", fields{"command": "exec sleep 4321", "background": true})
	var started struct{ PID int }
	if data, err := json.Marshal(pid.Data); err != nil || json.Unmarshal(data, &started) != nil {
		t.Fatal(err)
	}
	const other = "/sessions/20001"
	b.want("shell_exec", fields{"command": "ln -s " + other + " way; ln -s " + other + "/data.txt file"})
	for _, in := range []struct {
		tool string
		in   fields
	}{
		{"file_read", fields{"file": other + "/data.txt"}},
		{"file_read", fields{"file": "../20001/data.txt"}},
		{"file_read", fields{"file": "way/data.txt"}},
		{"file_read", fields{"file": "file"}},
		{"file_read", fields{"file": other + "/data.txt", "sudo": true}},
		{"file_write", fields{"file": other + "/new", "content": "x"}},
		{"file_write", fields{"file": "way/new", "content": "x"}},
		{"file_write", fields{"file": "x", "content": "x", "sudo": true}},
		{"file_edit", fields{"file": "file", "old_str": "own", "new_str": "our"}},
		{"file_delete", fields{"path": other, "recursive": true}},
		{"file_delete", fields{"path": "way/data.txt"}},
		{"file_list", fields{"path": other}},
		{"file_list", fields{"path": "way/."}},
		{"file_download", fields{"path": other + "/data.txt"}},
		{"file_search", fields{"file": other, "regex": "."}},
		{"grep", fields{"pattern": ".", "path": "way/."}},
		{"glob", fields{"pattern": "*", "path": other}},
		{"git_status", fields{"repo_path": other}},
		{"shell_exec", fields{"command": "cat " + other + "/data.txt"}},
		{"shell_exec", fields{"command": "cd " + other}},
		{"shell_exec", fields{"command": "echo x > " + other + "/new"}},
		{"shell_exec", fields{"command": "rm -rf " + other + "/data.txt; ls " + other}},
		{"shell_exec", fields{"command": "kill -9 PID"}},
		{"shell_exec", fields{"command": "cat /proc/PID/environ /proc/PID/mem"}},
		{"shell_exec", fields{"command": "ls /proc/PID/fd /proc/PID/cwd/"}},
		{"shell_exec", fields{"command": "python3 -c 'import ctypes,sys; l=ctypes.CDLL(None); sys.exit(0 if l.ptrace(16,PID,0,0)==0 else 1)'"}},
		{"shell_exec", fields{"command": "su -c id; sudo -n id; chmod 777 " + other}},
		{"shell_exec", fields{"command": "x", "exec_dir": other}},
	} {
		if command, ok := in.in["command"].(string); ok {
			data, err := json.Marshal(started.PID)
			if err != nil {
				t.Fatal(err)
			}
			in.in["command"] = strings.ReplaceAll(command, "PID", string(data))
		}
		r := b.call(in.tool, in.in)
		if !r.Failed {
			t.Errorf("%s %v: %s\nwant a failure", in.tool, in.in, r.Text)
		}
		b.lacks(r, "a's own")
	}
	b.lacks(b.want("process_list", fields{"all": true}), "4321")
	a.want("file_read", fields{"file": "data.txt"}, "a's own data")
	a.want("shell_view", nil, "[RUNNING]")
	setup.want("workspace_info", nil)
}

// gitServer serves the repositories of its directory by HTTP, to clients with the password.
const gitServer = `
import base64, http.server, os, subprocess
class Handler(http.server.BaseHTTPRequestHandler):
    def serve(self):
        if self.headers.get("Authorization") != "Basic " + base64.b64encode(b"me:pass-word-123").decode():
            self.send_response(401)
            self.send_header("WWW-Authenticate", "Basic realm=x")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        env = dict(os.environ, GIT_PROJECT_ROOT=os.getcwd(), GIT_HTTP_EXPORT_ALL="1", PATH_INFO=path, QUERY_STRING=query,
            REQUEST_METHOD=self.command, CONTENT_TYPE=self.headers.get("Content-Type", ""), REMOTE_USER="me", REMOTE_ADDR="127.0.0.1",
            HTTP_CONTENT_ENCODING=self.headers.get("Content-Encoding", ""))
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        out = subprocess.run(["git", "http-backend"], input=body, env=env, stdout=subprocess.PIPE).stdout
        head, _, rest = out.partition(b"\r\n\r\n")
        self.wfile.write(b"HTTP/1.0 200 OK\r\n" + head + b"\r\n\r\n" + rest)
    do_GET = do_POST = serve
import sys
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
`

// serveGit serves an empty repository, repo.git, on a port of the sandbox.
func serveGit(k kit, port int) {
	k.Helper()
	k.want("file_write", fields{"file": "server.py", "content": gitServer})
	k.want("shell_exec", fields{"command": "git init -q --bare -b main repo.git && git -C repo.git config http.receivepack true"}, "[SUCCESS]")
	k.want("shell_exec", fields{"command": fmt.Sprintf("python3 server.py %d", port), "background": true})
	k.want("shell_exec", fields{"command": fmt.Sprintf("for i in $(seq 100); do (echo > /dev/tcp/127.0.0.1/%d) 2>/dev/null && break; sleep 0.1; done", port)})
}

func testPrivate(_ *testing.T, k kit) {
	serveGit(k, 8124)
	const url = "http://127.0.0.1:8124/repo.git"
	right := fields{"username": "me", "password": "pass-word-123"}
	k.refused("git_clone", fields{"url": url}, sandpit.Unauthenticated)
	k.refused("git_clone", fields{"url": url, "credentials": fields{"password": "wrong-password"}}, sandpit.Unauthenticated)
	// What git says of its own requests has the credentials in another form.
	k.want("env_set", fields{"name": "GIT_TRACE_CURL", "value": "1"})
	k.want("env_set", fields{"name": "GIT_TRACE_REDACT", "value": "0"})
	told := k.call("git_clone", fields{"url": url, "destination": "none", "branch": "nothing", "credentials": right})
	if !told.Failed || !strings.Contains(told.Text, "Authorization: Basic ***") {
		k.Errorf("a clone that fails, with a trace: %s", told.Text)
	}
	k.lacks(told, "bWU6cGFzcy13b3JkLTEyMw")
	k.want("env_set", fields{"name": "GIT_TRACE_CURL", "value": "0"})
	k.lacks(k.want("git_clone", fields{"url": url, "destination": "one", "credentials": right}, "Cloned into"), "pass-word")
	k.want("git_clone", fields{"url": "http://me:pass-word-123@127.0.0.1:8124/repo.git", "destination": "two"}, "Cloned into")
	k.want("shell_exec", fields{"command": "git -C one checkout -q -b main || git -C one branch -m main"})
	k.want("file_write", fields{"file": "one/a", "content": "x"})
	k.want("git_commit", fields{"repo_path": "one", "message": "first"}, "Committed")
	k.refused("git_push", fields{"repo_path": "one"}, sandpit.Unauthenticated)
	k.want("git_push", fields{"repo_path": "one", "branch": "main", "credentials": right}, "refs/heads/main")
	k.want("shell_exec", fields{"command": "grep -r pass-word one two; grep -r extraHeader one two; git -C repo.git log --oneline | wc -l"}, "[SUCCESS]\n1")
	k.lacks(k.want("shell_exec", fields{"command": "cat server.py"}), "pass-word-123")
}
