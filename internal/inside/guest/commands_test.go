package guest

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/reach/gen/process"
)

// startNamed starts a shell script as a command of an id and waits for its end.
func startNamed(t *testing.T, s *httptest.Server, id, script string) []string {
	t.Helper()
	req := fmt.Sprintf(`{"process":{"cmd":"sh","args":["-c",%q]},"stdin":false}`, script)
	return frames(t, s, "/process.Process/Start", req, IDHeader, id)
}

func commandCall(t *testing.T, s *httptest.Server, method, body string) answer {
	t.Helper()
	return send(t, s, http.MethodPost, "/sandpit.v1.Commands/"+method, "application/json", body)
}

// TestCommandsWire checks the wire form of commands.
func TestCommandsWire(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	got := startNamed(t, s, "mine", "echo out; exit 3")
	want := []string{`0 {"event":{"data":{"stdout":"b3V0Cg=="}}}`, `0 {"event":{"end":{"exitCode":3,"exited":true,"status":"exit status 3","error":"exit status 3"}}}`, `2 {}`}
	if len(got) != 4 || !slices.Equal(got[1:], want) {
		t.Errorf("start: got %q, want %q after the first", got, want)
	}
	got = frames(t, s, "/sandpit.v1.Commands/Follow", `{"id":"mine","stdoutOffset":"1"}`)
	if len(got) != 4 || got[1] != `0 {"output":{"stream":"STREAM_STDOUT","offset":"1","data":"dXQK"}}` {
		t.Errorf("follow: got %q", got)
	}
	for _, part := range []string{
		`"id":"mine"`, `"args":["sh","-c","echo out; exit 3"]`, `"exitCode":3,"exited":true,"status":"exit status 3"`, `"stdout":{"size":"4"}`, `"stderr":{}`,
	} {
		for _, i := range []int{0, 2} {
			if !strings.Contains(got[i], part) {
				t.Errorf("event %d lacks %s: %s", i, part, got[i])
			}
		}
	}
	for _, tc := range []struct {
		method, body string
		status       int
		text         string
	}{
		{"GetCommand", `{"id":"mine"}`, http.StatusOK, `"command":{"id":"mine"`},
		{"GetCommand", `{"id":"other"}`, http.StatusNotFound, `"code":"not_found"`},
		{"ListCommands", `{}`, http.StatusOK, `{"commands":[{"id":"mine"`},
		{"ForgetCommand", `{"id":"mine"}`, http.StatusOK, `{}`},
		{"ForgetCommand", `{"id":"mine"}`, http.StatusNotFound, `"code":"not_found"`},
		{"ListCommands", `{}`, http.StatusOK, `{}`},
	} {
		if res := commandCall(t, s, tc.method, tc.body); res.status != tc.status || !strings.Contains(compact(t, res.body), tc.text) {
			t.Errorf("%s %s: got %d %s, want %d %s", tc.method, tc.body, res.status, res.body, tc.status, tc.text)
		}
	}
}

// TestStartNamesTheCommand has every Start say as what it runs.
func TestStartNamesTheCommand(t *testing.T) {
	t.Parallel()
	s := newTestServer(t)
	const body = `{"process":{"cmd":"true"},"stdin":false}`
	unnamed := sendFrame(t, s, "/process.Process/Start", body)
	if id := unnamed.header.Get(IDHeader); len(id) != 26 {
		t.Errorf("the guest has chosen the id %q", id)
	}
	named := sendFrame(t, s, "/process.Process/Start", body, IDHeader, "named")
	if id := named.header.Get(IDHeader); id != "named" {
		t.Errorf("got the id %q", id)
	}
	for id, code := range map[string]string{"named": "already_exists", "a/b": "invalid_argument", strings.Repeat("x", 65): "invalid_argument"} {
		if got := frames(t, s, "/process.Process/Start", body, IDHeader, id); len(got) != 1 || !strings.Contains(got[0], code) {
			t.Errorf("start %s: got %q, want %s", id, got, code)
		}
	}
}

// TestOldestCommandsAreForgotten ends more commands than are remembered.
func TestOldestCommandsAreForgotten(t *testing.T) {
	t.Parallel()
	g := newGuest(t.TempDir())
	list := g.processes.commands
	list.maxEnded = 10
	for i := range 25 {
		c := list.addCommand(fmt.Sprint("c", i), i+1, &process.StartRequest{Process: &process.ProcessConfig{Cmd: "x"}})
		c.log.Append(0, []byte("output"))
		c.setEnd(&process.ProcessEvent_EndEvent{ExitCode: int32(i)}, false)
		list.addEnded(c)
	}
	running := list.addCommand("running", 100, &process.StartRequest{})
	var ids []string
	for _, c := range list.listCommands() {
		ids = append(ids, c.id)
	}
	if len(ids) != 11 || ids[0] != "c15" || ids[10] != "running" {
		t.Errorf("remembered: %q", ids)
	}
	running.setEnd(&process.ProcessEvent_EndEvent{}, false)
	if err := list.forgetCommand("running"); err != nil { // between its end and its retirement
		t.Error(err)
	}
	list.addEnded(running)
	if list.findCommand("running") != nil || len(list.byTime) != 10 {
		t.Errorf("%d are remembered", len(list.byTime))
	}
	g.Close()
}

// TestMuchOutput has a command write far more than is kept, and looks at what this
// program and the disk have of it.
func TestMuchOutput(t *testing.T) {
	if testing.Short() {
		t.Skip("it moves 100 MiB")
	}
	dir := t.TempDir()
	g := newGuest(dir)
	s := httptest.NewServer(g.Handler())
	defer g.Close()
	defer s.Close()
	initTestServer(t, s)
	before := measure(t)
	const size = 100 << 20
	startAndLeave(t, s, "much", fmt.Sprintf("head -c %d /dev/zero", size))
	var body string
	for deadline := time.Now().Add(2 * time.Minute); !strings.Contains(body, `"ended"`); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("it never ends: %s", body)
		}
		body = commandCall(t, s, "GetCommand", `{"id":"much"}`).body
	}
	after := measure(t)
	if after.heap > before.heap+(2<<20) {
		t.Errorf("the heap grew from %d to %d bytes", before.heap, after.heap)
	}
	if !strings.Contains(compact(t, body), fmt.Sprintf(`"stdout":{"size":"%d","dropped":"`, size)) {
		t.Errorf("told: %s", body)
	}
	if list, err := os.ReadDir(dir); err != nil || len(list) > 0 {
		t.Errorf("the journal has a name: %v, %v", list, err)
	}
	if kept := journalSize(t, dir); kept == 0 || kept > 64<<20 {
		t.Errorf("%d bytes are on the disk", kept)
	}
	if res := commandCall(t, s, "ForgetCommand", `{"id":"much"}`); res.status != http.StatusOK {
		t.Errorf("forget: %+v", res)
	}
	if kept := journalSize(t, dir); kept != 0 {
		t.Errorf("%d bytes are left on the disk", kept)
	}
}

// startAndLeave starts a shell script as a command of an id, and hangs up.
func startAndLeave(t *testing.T, s *httptest.Server, id, script string) {
	t.Helper()
	ctx, hangUp := context.WithCancel(t.Context())
	defer hangUp()
	body := strings.NewReader(frame(fmt.Sprintf(`{"process":{"cmd":"sh","args":["-c",%q]},"stdin":false}`, script)))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL+"/process.Process/Start", body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/connect+json")
	req.Header.Set(TokenHeader, testToken)
	req.Header.Set(IDHeader, id)
	res, err := s.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if _, err := res.Body.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
}

// journalSize is the size of files in dir that have no name any more, in bytes.
func journalSize(t *testing.T, dir string) (size int64) {
	t.Helper()
	names, err := filepath.Glob("/proc/self/fd/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if target, err := os.Readlink(name); err != nil || !strings.HasPrefix(target, dir+"/") {
			continue
		}
		info, err := os.Stat(name)
		if err != nil {
			t.Fatal(err)
		}
		size += info.Size()
	}
	return size
}
