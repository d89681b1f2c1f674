package mcp_test

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testtools"
)

// firstCalls names the variable that has TestFirstCalls make every call through every front
// end. Otherwise each call is made through one of them for each image, and a few through all.
const firstCalls = "SANDPIT_TEST_FIRST_CALLS"

// everywhere are calls that all front ends make: each depends on the working directory.
var everywhere = []string{"file_list", "git_status", "sandbox_context"}

// firstPlace is an image whose sandboxes are used by first calls.
type firstPlace struct {
	image, dir string
	// programs are those that the image lacks of testtools.Call.Needs.
	lacks []string
}

// TestFirstCalls makes calls that are the first ones of a connection, each with a new sandbox.
func TestFirstCalls(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	small := string(testtools.SmallImage(t))
	run(t, s, "image", "import", small, "--name", "app:1")
	key := s.key(t, "first")
	lacking := []string{"python3", "node", "git", testtools.Browser}
	combination := 0
	dial := func(tb testing.TB, front, image string) *sdk.ClientSession {
		tb.Helper()
		switch front {
		case "stdio":
			return connect(tb, "--tools", "all", image)
		case "stdio with server":
			return s.program(tb, "--tools", "all", image)
		}
		return s.connect(tb, key, "?tools=all&image="+image, nil)
	}
	for _, name := range []string{"stdio", "stdio with server", "HTTP"} {
		for _, place := range []firstPlace{
			{"host", "/workspace", nil},
			{map[bool]string{true: small, false: "app:1"}[name == "stdio"], testtools.ImageDir, lacking},
		} {
			number := combination
			combination++
			t.Run(name+" in "+strings.ReplaceAll(place.dir, "/", " "), func(t *testing.T) {
				for i, c := range testtools.Calls() {
					chosen := i%6 == number && c.Needs != testtools.Browser
					if !chosen && !slices.Contains(everywhere, c.Tool) && os.Getenv(firstCalls) == "" {
						continue
					}
					session := dial(t, name, place.image)
					checkFirst(t, session, place, c)
					if err := session.Close(); err != nil && name != "HTTP" {
						t.Errorf("%s: close: %v", c.Tool, err)
					}
				}
			})
		}
	}
	t.Run("AIO", func(t *testing.T) { testFirstRequests(t, s) })
}

// checkFirst makes a call and checks its answer.
func checkFirst(t *testing.T, session *sdk.ClientSession, place firstPlace, c testtools.Call) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	r, err := session.CallTool(ctx, &sdk.CallToolParams{Name: c.Tool, Arguments: c.Input})
	if err != nil {
		t.Errorf("%s: %v", c.Tool, err)
		return
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if part, ok := r.Content[0].(*sdk.TextContent); ok {
		text = part.Text
	}
	var answer struct {
		Structured struct {
			Problem struct {
				Code sandpit.Code `json:"code"`
			} `json:"problem"`
		} `json:"structuredContent"`
	}
	if err := json.Unmarshal(data, &answer); err != nil {
		t.Fatal(err)
	}
	code := answer.Structured.Problem.Code
	allowed := c.Codes
	if slices.Contains(place.lacks, c.Needs) {
		if c.Tool == "sandbox_context" {
			return
		}
		allowed = []sandpit.Code{sandpit.NotFound, sandpit.Unsupported}
	}
	if ok := code == "" && len(allowed) == 0 || slices.Contains(allowed, code); !ok || strings.Contains(text, "cwd") {
		t.Errorf("%s: %q %.500s\nwant a code of %v", c.Tool, code, text, allowed)
	}
	if want := strings.ReplaceAll(c.Text, testtools.Dir, place.dir); code == "" && !strings.Contains(text, want) {
		t.Errorf("%s: %.500s\nwant %q in it", c.Tool, text, want)
	}
	if place.dir != "/workspace" && strings.Contains(string(data), "/workspace") {
		t.Errorf("%s: %.500s\nknows a directory that is not the image's", c.Tool, data)
	}
}

// TestFirstCallsInTemplates builds every template of the program and makes all first calls in
// each, which takes an hour and needs mirrors of Debian and npm.
func TestFirstCallsInTemplates(t *testing.T) {
	if os.Getenv(firstCalls) != "templates" {
		t.Skip(firstCalls + " is not templates")
	}
	files, err := filepath.Glob("../../internal/build/template/builtin/*.toml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no templates: %v", err)
	}
	dir := t.TempDir()
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".toml")
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), testengine.Path(t), "template", "build", "builtin:"+name)
			cmd.Env = testengine.Environ(dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("build: %v\n%s", err, out)
			}
			place := firstPlace{image: "template:" + name, dir: "/home/user"}
			session := connectIn(t, dir, place.image)
			for _, program := range []string{"python3", "node", "git", testtools.Browser} {
				if _, failed := try(t, session, "shell_exec", map[string]any{"command": "command -v " + program}); failed {
					place.lacks = append(place.lacks, program)
				}
			}
			for _, c := range testtools.Calls() {
				session := connectIn(t, dir, "--tools", "all", place.image)
				checkFirst(t, session, place, c)
				if err := session.Close(); err != nil {
					t.Errorf("%s: close: %v", c.Tool, err)
				}
			}
		})
	}
}

// testFirstRequests makes requests of AIO's interface that are the first ones of a sandbox.
func testFirstRequests(t *testing.T, s *server) {
	t.Helper()
	key := s.key(t, "first-aio")
	mine, err := client.New(client.Options{URL: s.url, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	for _, tc := range []struct{ request, want string }{
		{"GET /v1/sandbox", `"workspace":"` + testtools.ImageDir + `"`},
		{`POST /v1/shell/exec {"command":"pwd"}`, testtools.ImageDir},
		{`POST /v1/file/list {"path":"."}`, `"success":true`},
		{`POST /v1/file/find {"path":".","glob":"*"}`, `"success":true`},
		{`POST /v1/file/write {"file":"a.txt","content":"x"}`, `"success":true`},
	} {
		box, err := mine.Sandboxes.Create(t.Context(), client.CreateRequest{Spec: sandpit.Spec{Image: "app:1"}})
		if err != nil {
			t.Fatal(err)
		}
		a := aio{TB: t, base: s.url + "/aio/" + string(box.ID), key: key}
		a.ask(tc.request, http.StatusOK, tc.want)
		if err := box.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

// program connects to `sandpit mcp` that uses the server.
func (s *server) program(tb testing.TB, args ...string) *sdk.ClientSession {
	tb.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), testengine.Path(tb), append([]string{"mcp", "--server", "unix://" + s.dir + "/run/sandpit.sock"}, args...)...)
	cmd.Env, cmd.Stderr = s.settings, os.Stderr
	session, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).
		Connect(tb.Context(), &sdk.CommandTransport{Command: cmd, TerminateDuration: patience}, nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = session.Close() }) // the test may have ended it
	return session
}

// run runs a command of the program with the server's settings.
func run(t *testing.T, s *server, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testengine.Path(t), args...)
	cmd.Env = s.settings
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("sandpit %v: %v\n%s", args, err, out)
	}
}

// TestDefaultTools looks at what a client sees that chooses nothing, and calls tools by other
// names.
func TestDefaultTools(t *testing.T) {
	t.Parallel()
	session := connect(t)
	list, err := session.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(list)
	if err != nil {
		t.Fatal(err)
	}
	if len(list.Tools) != 25 || len(data) > 20<<10 {
		t.Errorf("%d tools in %d bytes, want 25 in 20 KiB at most", len(list.Tools), len(data))
	}
	if text, failed := try(t, session, "python_execute", map[string]any{"code": "6 * 7"}); failed || !strings.Contains(text, "42") {
		t.Errorf("an alias: %s", text)
	}
	if text, failed := try(t, session, "browser_tabs", nil); !failed || !strings.Contains(text, "--tools default,browser_tabs") {
		t.Errorf("a tool that is not offered: %s", text)
	}
	if _, err := session.CallTool(t.Context(), &sdk.CallToolParams{Name: "no_such_tool"}); err == nil || !strings.Contains(err.Error(), "unknown tool") {
		t.Errorf("a tool that does not exist: %v", err)
	}
}

// TestSleepingSandbox has calls find their sandbox paused, paused on disk and stopped.
func TestSleepingSandbox(t *testing.T) {
	t.Parallel()
	s := newServer(t)
	key := s.key(t, "sleeper")
	mine, err := client.New(client.Options{URL: s.url, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	aioBox, err := mine.Sandboxes.Create(t.Context(), client.CreateRequest{Spec: sandpit.Spec{Image: "host"}})
	if err != nil {
		t.Fatal(err)
	}
	a := aio{TB: t, base: s.url + "/aio/" + string(aioBox.ID), key: key}
	overHTTP, overServer := s.connect(t, key, "", nil), s.program(t)
	write := map[string]any{"command": "echo kept > file"}
	call(t, overHTTP, "shell_exec", write)
	httpBox := s.boxes(t, "sleeper")
	call(t, overServer, "shell_exec", write)
	a.ask(`POST /v1/shell/exec {"command":"echo kept > file"}`, http.StatusOK)
	var ids []sandpit.ID
	for _, box := range slices.Concat(httpBox, s.boxes(t, "local")) {
		ids = append(ids, box.ID)
	}
	if len(ids) != 3 {
		t.Fatalf("%d sandboxes, want 3", len(ids))
	}
	for name, sleep := range map[string]func(context.Context, sandpit.ID) error{"paused": s.admin.Sandboxes.Pause, "suspended": s.admin.Sandboxes.Suspend, "stopped": s.admin.Sandboxes.Stop} {
		for _, id := range ids {
			if err := sleep(t.Context(), id); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		read := map[string]any{"command": "cat file"}
		for front, session := range map[string]*sdk.ClientSession{"HTTP": overHTTP, "a server": overServer} {
			if text, failed := try(t, session, "shell_exec", read); failed || !strings.Contains(text, "kept") {
				t.Errorf("%s, %s: %s", name, front, text)
			}
		}
		a.ask(`POST /v1/shell/exec {"command":"cat file"}`, http.StatusOK, "kept")
	}
}
