package tool_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/testing/testtools"
)

// firstCalls names the variable that has tests make every first call, also those that start a
// browser each.
const firstCalls = "SANDPIT_TEST_FIRST_CALLS"

// TestFirstCallsComplete wants a first call for every tool.
func TestFirstCallsComplete(t *testing.T) {
	t.Parallel()
	all, err := tool.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	called := map[string]bool{}
	for _, c := range testtools.Calls() {
		called[c.Tool] = true
	}
	for _, d := range all.Tools() {
		if !called[d.Name] {
			t.Errorf("%s has no first call", d.Name)
		}
		delete(called, d.Name)
	}
	for name := range called {
		t.Errorf("there is no tool %s", name)
	}
}

// TestFirstCalls calls each tool as the first one of a session, in a sandbox whose working
// directory does not exist.
func TestFirstCalls(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		spec sandpit.Spec
		dir  string
	}{
		"host":                                  {sandpit.Spec{Image: sandpit.HostImage}, "/workspace"},
		"host as an ordinary user":              {sandpit.Spec{Image: sandpit.HostImage, User: "1000:1000"}, "/workspace"},
		"an image with a directory and a user":  {sandpit.Spec{Image: testtools.Image(t), Mounts: testtools.Mounts()}, testtools.ImageDir},
		"a directory that was chosen":           {sandpit.Spec{Image: testtools.Image(t), Mounts: testtools.Mounts(), WorkDir: "/opt/mine"}, "/opt/mine"},
		"the home, as clients of E2B choose it": {sandpit.Spec{Image: testtools.Image(t), Mounts: testtools.Mounts(), WorkDir: sandpit.HomeDir}, "/home/app"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			usual := name == "an image with a directory and a user"
			if !testing.Short() {
				usual = usual || tc.spec.User != "" || tc.spec.WorkDir == sandpit.HomeDir
			}
			if os.Getenv(firstCalls) == "" && !usual {
				t.Skip("only the sandbox differs")
			}
			tc.spec.Resources = sandpit.Resources{Memory: 1 << 30}
			box := newBoxOf(t, tc.spec)
			for _, c := range testtools.Calls() {
				if c.Needs == testtools.Browser && os.Getenv(firstCalls) == "" && (c.Tool != "browser_open" || tc.dir != testtools.ImageDir) {
					continue
				}
				if c.Needs == testtools.Browser {
					needBrowser(t)
				}
				left := []string{tc.dir}
				if tc.spec.WorkDir == sandpit.HomeDir { // which the guest does not make
					left = []string{"~/a.txt", "~/b.txt", "~/c.txt"}
				}
				for _, name := range left {
					if err := box.Guest().Remove(t.Context(), "", name); err != nil {
						t.Fatal(err)
					}
				}
				firstCall(t, box, tc.spec.User, tc.dir, c)
			}
		})
	}
}

func firstCall(t *testing.T, box sandpit.Instance, user, dir string, c testtools.Call) {
	t.Helper()
	tools, err := tool.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	session, err := tool.NewSession(t.Context(), box.Guest(), tool.SessionOptions{ID: "first", User: user})
	if err != nil {
		t.Errorf("%s: %v", c.Tool, err)
		return
	}
	input, err := json.Marshal(c.Input)
	if err != nil {
		t.Fatal(err)
	}
	r := tools.Invoke(t.Context(), session, c.Tool, input)
	var code sandpit.Code
	if r.Problem != nil {
		code = r.Problem.Code
	}
	if want := strings.ReplaceAll(c.Text, testtools.Dir, dir); !strings.Contains(r.Text, want) {
		t.Errorf("%s: %.500s\nwant %q in it", c.Tool, r.Text, want)
	}
	if ok := code == "" && len(c.Codes) == 0 || slices.Contains(c.Codes, code); !ok || strings.Contains(r.Text, "cwd") {
		t.Errorf("%s: %q %.500s\nwant a code of %v", c.Tool, code, r.Text, c.Codes)
	}
	if err := session.Close(); err != nil {
		t.Errorf("%s: close: %v", c.Tool, err)
	}
}

// TestUnwritableDirectory works in the directory of an image whose user cannot write there.
func TestUnwritableDirectory(t *testing.T) {
	t.Parallel()
	box := newBoxOf(t, sandpit.Spec{Image: testtools.Image(t), Mounts: testtools.Mounts(), WorkDir: "/srv"})
	k := newKit(t, box, tool.SessionOptions{ID: "unwritable"})
	k.want("workspace_info", nil, "works in /srv ")
	k.want("workspace_health", nil, "healthy")
	k.want("shell_exec", fields{"command": "touch a.txt"}, "Permission denied")
	if r := k.want("shell_exec", fields{"command": "seq 100000"}); !strings.HasPrefix(r.SavedTo, "/home/app/") {
		t.Errorf("a long output is kept in %q", r.SavedTo)
	}
	if out, err := tool.NewSession(t.Context(), box.Guest(), tool.SessionOptions{Dir: "/etc/passwd"}); err == nil {
		t.Errorf("a file is the working directory %s", out.Dir())
	}
	// One that the user may not enter.
	box = newBoxOf(t, sandpit.Spec{Image: testtools.Image(t), Mounts: testtools.Mounts(), User: "root"})
	k = newKit(t, box, tool.SessionOptions{ID: "root"})
	k.want("shell_exec", fields{"command": "chmod 700 " + testtools.ImageDir}, "[SUCCESS]")
	k = newKit(t, box, tool.SessionOptions{ID: "closed", User: testtools.ImageUser})
	k.want("workspace_info", nil, "works in /home/app ")
	k.want("file_write", fields{"file": "a.txt", "content": "x"})
}
