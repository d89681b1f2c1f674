package tool_test

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// testEditor edits a file, and takes it back.
func testEditor(t *testing.T, k kit) {
	t.Helper()
	const file, name = "/workspace/editor/a.txt", "str_replace_editor"
	edit := func(command string, in fields) fields {
		all := fields{"command": command, "path": file}
		maps.Copy(all, in)
		return all
	}
	holds := func(want string) {
		t.Helper()
		if r := k.want("file_download", fields{"path": file}); r.Text != want {
			t.Errorf("the file holds %q, want %q", r.Text, want)
		}
	}
	k.refused(name, edit("undo_edit", nil), sandpit.NotFound, "no edit")
	k.refused(name, edit("view", nil), sandpit.NotFound)
	k.refused(name, edit("view", fields{"path": "a.txt"}), sandpit.Invalid, "not an absolute path", "did you mean "+file+"?")
	k.refused(name, edit("create", nil), sandpit.Invalid, "file_text is required for create")
	k.want(name, edit("create", fields{"file_text": "one\n\ttwo\nthree"}), "Created "+file)
	k.refused(name, edit("create", fields{"file_text": ""}), sandpit.AlreadyExists)
	k.want(name, edit("view", nil), "     1\tone\n     2\t\ttwo\n     3\tthree")
	k.want(name, edit("view", fields{"view_range": []int{2, 2}}), "     2\t\ttwo\n")
	k.want(name, edit("view", fields{"view_range": []int{3, -1}}), "     3\tthree")
	for _, r := range [][]int{{0, 1}, {2, 1}, {1, 4}, {4, -1}, {1, -2}, {1}, {1, 2, 3}} {
		k.refused(name, edit("view", fields{"view_range": r}), sandpit.Invalid)
	}
	k.want(name, edit("view", fields{"path": "/workspace/editor"}), "a.txt", "1 entries")
	k.refused(name, edit("view", fields{"path": "/workspace/editor", "view_range": []int{1, 2}}), sandpit.Invalid, "is a directory")

	k.want(name, edit("str_replace", fields{"old_str": "\ttwo\n", "new_str": "2\n"}), "     2\t2\n")
	k.want(name, edit("insert", fields{"insert_line": 0, "new_str": "zero"}), "     1\tzero\n     2\tone")
	k.want(name, edit("insert", fields{"insert_line": 4, "new_str": "four\n"}), "     5\tfour")
	holds("zero\none\n2\nthree\nfour\n")
	k.want(name, edit("str_replace", fields{"old_str": "2\n"}), "Edited ")
	k.refused(name, edit("str_replace", fields{"old_str": "e", "new_str": "E"}), sandpit.Conflict, "lines 1, 2, 3")
	k.refused(name, edit("str_replace", fields{"old_str": "none", "new_str": "E"}), sandpit.NotFound)
	k.refused(name, edit("str_replace", fields{"new_str": "E"}), sandpit.Invalid, "old_str is required")
	k.refused(name, edit("insert", fields{"insert_line": 99, "new_str": "x"}), sandpit.Invalid, "the file has 4")
	k.refused(name, edit("insert", fields{"new_str": "x"}), sandpit.Invalid, "insert_line and new_str")
	k.refused(name, edit("dance", nil), sandpit.Invalid)

	for _, want := range []string{"zero\none\n2\nthree\nfour\n", "zero\none\n2\nthree", "one\n2\nthree", "one\n\ttwo\nthree"} {
		k.want(name, edit("undo_edit", nil), "Undid the last edit")
		holds(want)
	}
	k.want(name, edit("str_replace", fields{"old_str": "one", "new_str": "1"}))
	k.want("file_write", fields{"file": file, "content": "of somebody else"})
	k.refused(name, edit("undo_edit", nil), sandpit.Conflict, "has changed since")
	k.want("file_write", fields{"file": file, "content": "1\n\ttwo\nthree"})
	k.want(name, edit("undo_edit", nil), "Undid the last edit")
	k.want(name, edit("undo_edit", nil), "Removed ")
	k.refused(name, edit("undo_edit", nil), sandpit.NotFound)

	k.want(name, edit("create", fields{"file_text": strings.Repeat("x", 20_000)}))
	r := k.want(name, edit("view", nil), "<response clipped>")
	if n := strings.Count(r.Text, "x"); n != 16_000-7 {
		t.Errorf("%d characters of the file are shown", n)
	}
	for i := range 110 { // more than can be undone
		k.want(name, edit("insert", fields{"insert_line": 0, "new_str": strconv.Itoa(i)}))
	}
	for range 100 {
		k.want(name, edit("undo_edit", nil))
	}
	k.refused(name, edit("undo_edit", nil), sandpit.NotFound)
}

// testOverview looks at the whole workspace, and at a page in it.
func testOverview(t *testing.T, k kit) {
	t.Helper()
	k.want("workspace_state", nil, "state is empty")
	k.want("shell_exec", fields{"command": `
		mkdir -p src mybuild build node_modules .git; echo text > a.txt; echo x > src/deep.txt; head -c 20000 /dev/zero | tr '\0' y > long
		touch empty pic.PNG data.sql package-lock.json .gitignore; printf 'a\0b' > binary; printf '%9995s%s' '' s3cret-value > half`})
	k.want("env_set", fields{"name": "TOKEN", "value": "s3cret-value", "secret": true})
	r := k.want("get_workspace_state", nil, "a.txt  5 bytes:\ntext\n", "src/\n", "mybuild/\n", "long  20000 bytes, beginning with:\nyyy", "binary  3 bytes\n", "empty  0 bytes\n")
	files, ok := field(t, r, "files").(map[string]any)
	if !ok || len(files) != 7 {
		t.Errorf("%d files: %s", len(files), r.Text)
	}
	k.lacks(r, "s3c")
	for _, name := range []string{"deep", "node_modules", ".git", "PNG", "sql", "lock", "\nbuild"} {
		if strings.Contains(r.Text, name) {
			t.Errorf("%s is reported: %s", name, r.Text)
		}
	}
	long, ok := files["long"].(map[string]any)
	if content, _ := long["content"].(string); !ok || len(content) != 10_000 || long["truncated"] != true || long["size"] != 20_000.0 {
		t.Errorf("a long file: %v", long)
	}
	k.want("shell_exec", fields{"command": "mkdir many; cd many; for i in $(seq 250); do head -c 1000 /dev/zero | tr '\\0' z > f$i; done; mv * .."})
	r = k.want("workspace_state", nil, "and 58 more")
	if n := strings.Count(fmt.Sprint(field(t, r, "files")), "z"); n < 70_000 || n > 101_000 {
		t.Errorf("%d bytes of the files are reported", n)
	}
}

// testPage writes the page of a workspace, which people then see, and files that are not pages.
func testPage(t *testing.T, box sandpit.Instance) {
	t.Helper()
	asked := 0
	k := newKit(t, box, tool.SessionOptions{ID: "page", Dir: "/workspace/page", Preview: func(_ context.Context, port int) (tool.Page, error) {
		if asked++; asked == 3 {
			return tool.NewPage(port, "", time.Time{})
		}
		return tool.NewPage(port, fmt.Sprintf("http://%d.example/", port), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC))
	}})
	page := fields{"action": "create_file", "file_path": "index.html", "file_contents": "<p>hello page"}
	r := k.want("sandbox_files", page, "The page has the URL http://8080.example/ (for one browser, until 03:04:05 UTC)", "do not start another server")
	if got := fmt.Sprint(field(t, r, "page")); got != "map[expires_at:2026-01-02T03:04:05Z port:8080 url:http://8080.example/]" {
		t.Errorf("the page as data: %s", got)
	}
	k.want("http_request", fields{"url": "http://127.0.0.1:8080/"}, "200", "hello page")
	page["action"], page["file_contents"] = "full_file_rewrite", "<p>new page"
	k.want("sandbox_files", page, "The page has the URL http://8080.example/")
	k.want("http_request", fields{"url": "http://127.0.0.1:8080/"}, "new page")
	k.want("sandbox_files", page, "bytes\n(the page cannot be shown: this server has no previews)")
	page["action"], page["file_path"] = "create_file", "below/index.html"
	if r := k.want("sandbox_files", page); strings.Contains(r.Text, "seen") {
		t.Errorf("a page below: %s", r.Text)
	}
	other := newKit(t, box, tool.SessionOptions{ID: "page2", Dir: "/workspace/page2", Preview: func(context.Context, int) (tool.Page, error) { return tool.Page{URL: "http://x/"}, nil }})
	page["file_path"] = "index.html"
	other.want("sandbox_files", page, "Port 8080, which another server uses, has the URL http://x/")
	hidden := newKit(t, box, tool.SessionOptions{ID: "page3", Dir: "/workspace/page3"})
	if r := hidden.want("sandbox_files", page); strings.Contains(r.Text, "8080") {
		t.Errorf("where no user can see it: %s", r.Text)
	}
}
