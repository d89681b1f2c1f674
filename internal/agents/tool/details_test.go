package tool_test

import (
	"regexp"
	"strings"
	"testing"
)

// testOrder looks at the order and the depth of lists.
func testOrder(t *testing.T, k kit) {
	t.Helper()
	k.want("shell_exec", fields{"command": "mkdir -p z/y/x; printf 1 > b; printf 333 > a; printf 22 > c; touch -d 2001-01-01 a; touch -d 2003-01-01 b; touch -d 2002-01-01 c; touch -d 2000-01-01 z; touch z/y/x/deep"}, "[SUCCESS]")
	for by, want := range map[string]string{"": "a b c z/", "name": "a b c z/", "size": "a c b", "modified": "b c a z/", "type": "z/ a b c"} {
		in := fields{}
		if by != "" {
			in["sort_by"] = by
		}
		var names []string
		for line := range strings.Lines(k.want("file_list", in).Text) {
			if name := strings.Fields(line)[0]; regexp.MustCompile(`^(a|b|c|z/)$`).MatchString(name) && (by != "size" || name != "z/") { // a directory's size is its file system's
				names = append(names, name)
			}
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("sorted by %q: %s, want %s", by, got, want)
		}
	}
	for depth, deepest := range []string{1: "z/", 2: "z/y/", 3: "z/y/x/", 4: "z/y/x/deep"} {
		if depth == 0 {
			continue
		}
		text := k.want("file_list", fields{"recursive": true, "max_depth": depth}, deepest).Text
		if below := []string{1: "z/y", 2: "z/y/x", 3: "deep", 4: "none"}[depth]; strings.Contains(text, below) {
			t.Errorf("max_depth %d: %s\nwant no %s", depth, text, below)
		}
	}
	k.want("file_write", fields{"file": "lines.py", "content": "one\ntwo\nthree\nfour\nfive\n"})
	k.want("file_write", fields{"file": "lines.go", "content": "three\n"})
	if got := k.want("grep", fields{"pattern": "three", "file_type": "py"}).Text; strings.Contains(got, "lines.go") || !strings.Contains(got, "lines.py:3:three") {
		t.Errorf("file_type py: %s", got)
	}
	if got := k.want("grep", fields{"pattern": "three", "path": "lines.py", "before_context": 1}).Text; !strings.Contains(got, "lines.py-2-two") || strings.Contains(got, "four") {
		t.Errorf("before_context 1: %s", got)
	}
	if got := k.want("grep", fields{"pattern": "three", "path": "lines.py", "after_context": 1}).Text; !strings.Contains(got, "lines.py-4-four") || strings.Contains(got, "two") {
		t.Errorf("after_context 1: %s", got)
	}
}

// testGitDetails looks at what tells states of files apart, at authors and at the depth of clones.
func testGitDetails(t *testing.T, k kit) {
	t.Helper()
	k.want("shell_exec", fields{"command": `git init -q -b trunk r && cd r && git config user.name a && git config user.email a@b && for f in same old gone edit; do echo $f > $f; done && git add . && git commit -q -m one && git commit -q --allow-empty -m two && git commit -q --allow-empty -m three`, "session_id": "setup"}, "[SUCCESS]")
	k.want("shell_exec", fields{"command": `cd r && git mv old new && echo x > added && git add added && echo more >> edit && rm gone && echo u > 'not tracked'`, "session_id": "setup2"}, "[SUCCESS]")
	k.want("git_status", fields{"repo_path": "r"}, "On trunk\nstaged:\n  added\n  new\nchanged:\n  edit\n  gone\nuntracked:\n  not tracked")
	k.want("shell_exec", fields{"command": `cd r && git reset -q --hard && git clean -qfd && git switch -q -c side && echo side > edit && git commit -qam side && git switch -q trunk && echo trunk > edit && git commit -qam trunk && git merge side`, "session_id": "setup3"}, "CONFLICT")
	k.want("git_status", fields{"repo_path": "r"}, "in conflict:\n  edit")
	k.want("shell_exec", fields{"command": `cd r && git merge --abort && echo y > by`, "session_id": "setup4"}, "[SUCCESS]")
	k.want("git_commit", fields{"repo_path": "r", "message": "mine", "files": []string{"by"}, "author": "Ada L <ada@example.com>"}, "Committed ")
	k.want("shell_exec", fields{"command": `git -C r log -1 --format='%an %ae: %s'`}, "Ada L ada@example.com: mine")
	k.want("git_clone", fields{"url": "file://" + k.session.Dir() + "/r", "destination": "shallow", "depth": 1}, "trunk at")
	k.want("shell_exec", fields{"command": `git -C shallow rev-list --count HEAD`}, "[SUCCESS]\n1\n")
	k.want("git_clone", fields{"url": "file://" + k.session.Dir() + "/r", "destination": "whole"}, "trunk at")
	k.want("shell_exec", fields{"command": `git -C whole rev-list --count HEAD`}, "[SUCCESS]\n5\n")
}

// echoServer answers with the path and a header of each request.
const echoServer = `
import http.server
class H(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write((self.path + " " + str(self.headers.get("X-Test"))).encode())
http.server.HTTPServer(("127.0.0.1", 8127), H).serve_forever()
`

// testRequestDetails sends values in the query and headers.
func testRequestDetails(_ *testing.T, k kit) {
	k.want("file_write", fields{"file": "echo.py", "content": echoServer})
	k.want("shell_exec", fields{"command": "exec python3 echo.py", "background": true})
	k.want("shell_exec", fields{"command": "for i in $(seq 200); do (echo > /dev/tcp/127.0.0.1/8127) 2>/dev/null && break; sleep 0.1; done"})
	k.want("http_request", fields{
		"url": "http://127.0.0.1:8127/p?a=1", "params": map[string]string{"b": "x y&z"}, "headers": map[string]string{"X-Test": "sent"},
	}, "/p?a=1&b=x+y%26z sent")
}
