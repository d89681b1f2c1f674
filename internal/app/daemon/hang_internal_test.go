package daemon

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/crypto/ssh"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testtools"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// hangBounds are short bounds of calls to a guest, so that a test sees all of them pass.
var hangBounds = liveness.Options{
	Quiet: 500 * time.Millisecond, Interval: 500 * time.Millisecond, Patience: 2 * time.Second, Recheck: time.Second,
	Call: 3 * time.Second, Change: 4 * time.Second, Stream: 6 * time.Second, Pace: 3 * time.Second,
}

// hangRig is a server whose sandboxes hang.
type hangRig struct {
	*running

	box   string
	ids   map[string]string // what placeholders of routes stand for
	mcp   string            // the session
	ssh   *ssh.Client
	extra map[string]string // sandboxes of calls that end their sandbox, by call
}

// hangCall is a call into a sandbox. It returns what the caller is answered.
type hangCall func(ctx context.Context) string

// http returns a call of the API.
func (r *hangRig) http(method, path, body string, header ...string) hangCall {
	return func(ctx context.Context) string {
		req, err := http.NewRequestWithContext(ctx, method, "http://localhost"+path, strings.NewReader(body))
		if err != nil {
			return err.Error()
		}
		if strings.HasPrefix(body, "{") {
			req.Header.Set("Content-Type", "application/json")
		}
		for i := 0; i+1 < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		res, err := r.client.Do(req)
		if err != nil {
			return err.Error()
		}
		defer res.Body.Close()
		text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
		if id := res.Header.Get("Mcp-Session-Id"); id != "" && r.mcp == "" {
			r.mcp = id
		}
		if err != nil {
			text = append(text, err.Error()...)
		}
		return fmt.Sprintf("%d %s", res.StatusCode, text)
	}
}

// connectFrame is a message of a stream of the guest's protocol.
func connectFrame(text string) string {
	return string(append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(text))), text...))
}

// cli returns a call by the command line.
func (r *hangRig) cli(t *testing.T, args ...string) hangCall {
	t.Helper()
	dir := t.TempDir()
	return func(ctx context.Context) string {
		cmd := exec.CommandContext(ctx, testengine.Path(t), args...)
		cmd.Env = append(testengine.Environ(dir), "SANDPIT_URL=unix://"+r.Socket)
		cmd.WaitDelay = time.Second
		out, err := cmd.CombinedOutput()
		return fmt.Sprintf("%v %s", err, out)
	}
}

// overSSH returns a call by SSH.
func (r *hangRig) overSSH(terminal bool) hangCall {
	return func(ctx context.Context) string {
		ended := make(chan string, 1)
		go func() {
			ended <- func() string {
				s, err := r.ssh.NewSession()
				if err != nil {
					return err.Error()
				}
				defer s.Close()
				if terminal {
					if err := s.RequestPty("xterm", 24, 80, nil); err != nil {
						return err.Error()
					}
				}
				out, err := s.CombinedOutput("echo hello")
				return fmt.Sprintf("%v %s", err, out)
			}()
		}()
		select {
		case text := <-ended:
			return text
		case <-ctx.Done():
			return ctx.Err().Error()
		}
	}
}

// bySFTP looks at a file by SFTP.
func (r *hangRig) bySFTP(ctx context.Context) string {
	ended := make(chan string, 1)
	go func() {
		c, err := sftp.NewClient(r.ssh)
		if err != nil {
			ended <- err.Error()
			return
		}
		defer c.Close()
		_, err = c.Stat("/tmp/file")
		ended <- fmt.Sprint(err)
	}()
	select {
	case text := <-ended:
		return text
	case <-ctx.Done():
		return ctx.Err().Error()
	}
}

// newHangRig prepares what calls are about, while the sandboxes still answer.
func newHangRig(t *testing.T, list []registration.Provider, provider string) *hangRig {
	t.Helper()
	cfg := configured(t, "rate = 1000000", "burst = 1000000", "max_requests = 1000", "max_requests_per_owner = 900", "[ssh]", "listen = '127.0.0.1:0'")
	cfg.Engine, cfg.Provider = testengine.Path(t), provider
	r := &hangRig{running: start(t, cfg, list), extra: make(map[string]string)}
	r.box = string(r.sandbox(http.MethodPost, "/v1/sandboxes", `{"spec": {"name": "hangs"}}`, http.StatusCreated).ID)
	at := "/v1/sandboxes/" + r.box
	r.ask(http.MethodPut, at+"/files?path=/tmp/file", strings.Repeat("x", 64<<10), http.StatusNoContent)
	r.ids = map[string]string{"id": r.box, "sandbox": r.box}
	r.ids["cid"] = field(t, []byte(r.ask(http.MethodPost, at+"/run", `{"command": "echo begun; sleep 3600", "detach": true}`, http.StatusAccepted)), "command_id")
	r.ids["sid"] = field(t, []byte(r.ask(http.MethodPost, at+"/sessions", `{"name": "one"}`, http.StatusCreated)), "id")
	r.ids["jid"] = field(t, []byte(r.ask(http.MethodPost, at+"/sessions/"+r.ids["sid"]+"/jobs", `{"command": "cat"}`, http.StatusCreated)), "id")
	r.http(http.MethodPost, "/aio/"+r.box+"/v1/shell/exec", `{"command": "true"}`)(t.Context())
	r.http(http.MethodPost, "/mcp?tools=all", `{"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}}`, mcpAccept...)(t.Context())
	r.tool("shell_exec", map[string]any{"command": "true"})(t.Context())
	var token struct {
		Token string `json:"token"`
	}
	if err := json.Unmarshal([]byte(r.ask(http.MethodPost, at+"/ssh", "{}", http.StatusCreated)), &token); err != nil {
		t.Fatal(err)
	}
	var err error
	if r.ssh, err = ssh.Dial("tcp", r.SSH, &ssh.ClientConfig{
		User: r.box, Auth: []ssh.AuthMethod{ssh.Password(token.Token)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(), // it is the test's
	}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.ssh.Close() })
	for _, name := range endingCalls {
		r.extra[name] = string(r.sandbox(http.MethodPost, "/v1/sandboxes", `{}`, http.StatusCreated).ID)
	}
	return r
}

var mcpAccept = []string{"Accept", "application/json, text/event-stream"}

// tool returns a call of a tool by MCP.
func (r *hangRig) tool(name string, input any) hangCall {
	text, err := json.Marshal(map[string]any{"jsonrpc": "2.0", "id": name + rand.Text(), "method": "tools/call", "params": map[string]any{"name": name, "arguments": input}})
	if err != nil {
		return func(context.Context) string { return err.Error() }
	}
	return func(ctx context.Context) string {
		return r.http(http.MethodPost, "/mcp", string(text), append(mcpAccept, "Mcp-Session-Id", r.mcp)...)(ctx)
	}
}

// endingCalls are those that change the state of a sandbox. Each has a sandbox of its own.
var endingCalls = []string{
	"POST /v1/sandboxes/{id}/pause", "POST /v1/sandboxes/{id}/stop", "POST /v1/sandboxes/{id}/checkpoint", "POST /v1/sandboxes/{id}/fork",
	"POST /v1/snapshots", "DELETE /v1/sandboxes/{id}", "POST /sandboxes/{id}/pause", "DELETE /sandboxes/{id}",
	"POST /api/sandbox/{sandbox}/stop", "DELETE /api/sandbox/{sandbox}", "cli restart", "cli stop", "cli rm",
}

// calls are all calls of a client that need a sandbox's guest, or end it.
func (r *hangRig) calls(t *testing.T) map[string]hangCall {
	t.Helper()
	const box = "/v1/sandboxes/{id}"
	all := make(map[string]hangCall)
	add := func(pattern, body string, header ...string) {
		method, path, _ := strings.Cut(pattern, " ")
		ids := r.ids
		if id := r.extra[pattern]; id != "" {
			ids = map[string]string{"id": id, "sandbox": id}
		}
		for name, id := range ids {
			path, body = strings.ReplaceAll(path, "{"+name+"}", id), strings.ReplaceAll(body, "{"+name+"}", id)
		}
		all[pattern] = r.http(method, path, body, header...)
	}
	for pattern, body := range map[string]string{
		"POST " + box + "/run":                                 `{"command": "echo hello"}`,
		"POST " + box + "/run?":                                `{"command": "echo hello", "detach": true}`,
		"GET " + box + "/commands":                             "",
		"GET " + box + "/commands/{cid}":                       "",
		"GET " + box + "/commands/{cid}/output?wait_seconds=1": "",
		"POST " + box + "/commands/{cid}/signal":               `{"signal": 23}`,
		"DELETE " + box + "/commands/none":                     "",
		"PUT " + box + "/files?path=/tmp/new":                  strings.Repeat("y", 8<<20),
		"GET " + box + "/files?path=/tmp/file":                 "",
		"DELETE " + box + "/files?path=/tmp/none":              "",
		"GET " + box + "/files/list?path=/tmp":                 "",
		"GET " + box + "/files/stat?path=/tmp/file":            "",
		"POST " + box + "/files/mkdir":                         `{"path": "/tmp/dir"}`,
		"POST " + box + "/files/move":                          `{"from": "/tmp/a", "to": "/tmp/b"}`,
		"GET " + box + "/tree?path=/tmp":                       "",
		"PUT " + box + "/tree?path=/tmp/tree":                  strings.Repeat("\x00", 1024),
		"POST " + box + "/sessions":                            `{"name": "two"}`,
		"POST " + box + "/sessions/{sid}/run":                  `{"command": "echo hello", "timeout_seconds": 2}`,
		"POST " + box + "/sessions/{sid}/jobs":                 `{"command": "echo hello"}`,
		"POST " + box + "/sessions/{sid}/jobs/{jid}/stdin":     `{"text": "hello"}`,
		"POST " + box + "/sessions/{sid}/jobs/{jid}/signal":    `{"signal": 23}`,
		"GET " + box + "/sessions/{sid}/jobs/{jid}/output":     "",
		"GET " + box + "/stats":                                "",
		"GET " + box + "/envd/health":                          "",
		"GET " + box + "/envd/metrics":                         "",
		"GET " + box + "/envd/files?path=/tmp/file":            "",
		"POST " + box + "/envd/process.Process/List":           `{}`,
		"POST " + box + "/envd/filesystem.Filesystem/ListDir":  `{"path": "/tmp"}`,
		"POST " + box + "/envd/filesystem.Filesystem/Stat":     `{"path": "/tmp"}`,
		"POST /v1/snapshots":                                   `{"sandbox": "{id}", "name": "hung"}`,
		"POST " + box + "/fork":                                `{}`,
		"POST " + box + "/pause":                               "",
		"POST " + box + "/stop":                                "",
		"POST " + box + "/checkpoint":                          "",
		"DELETE " + box:                                        "",
		"POST /sandboxes/{id}/pause":                           `{}`,
		"DELETE /sandboxes/{id}":                               "",
		"GET /sandboxes/{id}/metrics":                          "",
		"GET /sandboxes/{id}/logs":                             "",
		"POST /api/sandbox/{sandbox}/stop":                     "",
		"DELETE /api/sandbox/{sandbox}":                        "",
		"POST /api/sandbox/{sandbox}/last-activity":            "",
		"POST /toolbox/{sandbox}/process/execute":              `{"command": "echo hello", "timeout": 2}`,
		"GET /aio/{sandbox}/v1/sandbox":                        "",
		"GET /aio/{sandbox}/v1/sandbox/packages/python":        "",
		"POST /aio/{sandbox}/v1/shell/exec":                    `{"command": "echo hello", "timeout": 2}`,
		"POST /aio/{sandbox}/v1/shell/sessions/create":         `{"id": "two"}`,
		"POST /aio/{sandbox}/v1/file/read":                     `{"file": "/tmp/file"}`,
		"POST /aio/{sandbox}/v1/file/write":                    `{"file": "/tmp/aio", "content": "x"}`,
		"POST /aio/{sandbox}/v1/file/list":                     `{"path": "/tmp"}`,
		"POST /aio/{sandbox}/v1/file/find":                     `{"path": "/tmp", "glob": "*"}`,
		"POST /aio/{sandbox}/v1/file/search":                   `{"file": "/tmp/file", "regex": "x"}`,
		"POST /aio/{sandbox}/v1/file/replace":                  `{"file": "/tmp/file", "old_str": "a", "new_str": "b"}`,
		"POST /aio/{sandbox}/v1/file/str_replace_editor":       `{"command": "view", "path": "/tmp/file"}`,
		"GET /aio/{sandbox}/v1/file/download?path=/tmp/file":   "",
		"POST /aio/{sandbox}/v1/jupyter/execute":               `{"code": "1"}`,
		"POST /aio/{sandbox}/v1/nodejs/execute":                `{"code": "1"}`,
		"POST /aio/{sandbox}/v1/code/execute":                  `{"language": "python", "code": "1"}`,
		"GET /aio/{sandbox}/v1/browser/info":                   "",
	} {
		add(pattern, body)
	}
	start := connectFrame(`{"process": {"cmd": "/bin/sh", "args": ["-c", "echo hello"]}}`)
	stream := []string{"Content-Type", "application/connect+json", "Connect-Protocol-Version", "1"}
	add("POST "+box+"/envd/process.Process/Start", start, stream...)
	add("POST "+box+"/envd/filesystem.Filesystem/WatchDir", connectFrame(`{"path": "/tmp"}`), stream...)
	e2b := []string{"E2b-Sandbox-Id", r.box, "E2b-Sandbox-Port", "49983"}
	add("POST /process.Process/Start", start, append(stream, e2b...)...)
	add("POST /process.Process/List", `{}`, e2b...)
	add("GET /files?path=/tmp/file", "", e2b...)
	add("GET /health", "", e2b...)
	add("POST "+box+"/run?events", `{"command": "echo hello"}`, "Accept", "text/event-stream")
	for _, c := range testtools.Calls() {
		if c.Needs != testtools.Browser || c.Tool == "browser_open" {
			input := c.Input
			if input == nil {
				input = map[string]any{}
			}
			all["mcp "+c.Tool] = r.tool(c.Tool, input)
		}
	}
	all["ssh command"], all["ssh terminal"], all["ssh sftp"] = r.overSSH(false), r.overSSH(true), r.bySFTP
	for name, args := range map[string][]string{
		"cli exec": {"exec", r.box, "--", "echo", "hello"}, "cli exec -d": {"exec", "-d", r.box, "--", "echo", "hello"}, "cli ps": {"ps", r.box},
		"cli cp out": {"cp", r.box + ":/tmp/file", t.TempDir()}, "cli cp in": {"cp", "/etc/passwd", r.box + ":/tmp/passwd"},
		"cli logs": {"logs", r.box, r.ids["cid"]}, "cli stats": {"stats", r.box}, "cli kill": {"kill", r.box, r.ids["cid"]},
		"cli restart": {"restart", r.extra["cli restart"]}, "cli stop": {"stop", r.extra["cli stop"]}, "cli rm": {"rm", "-f", r.extra["cli rm"]},
	} {
		all[name] = r.cli(t, args...)
	}
	return all
}

// try makes all calls at the same time, and complains about those that take longer than they
// may or fail without a remedy.
func (r *hangRig) try(t *testing.T, bound time.Duration) {
	t.Helper()
	all := r.calls(t)
	type result struct {
		name, text string
		took       time.Duration
	}
	var results []result
	var mu sync.Mutex
	var wg sync.WaitGroup
	for name, call := range all {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), bound+30*time.Second)
			defer cancel()
			begun := time.Now()
			text := call(ctx)
			mu.Lock()
			defer mu.Unlock()
			results = append(results, result{name, text, time.Since(begun)})
		})
	}
	wg.Wait()
	slices.SortFunc(results, func(a, b result) int { return cmp.Compare(b.took, a.took) })
	reasons := 0
	for _, x := range results {
		t.Logf("%7.2fs %s: %.200q", x.took.Seconds(), x.name, x.text)
		if x.took > bound {
			t.Errorf("%s takes %v, more than %v: %.300s", x.name, x.took, bound, x.text)
		}
		if strings.HasSuffix(x.name, "/logs") || strings.HasSuffix(x.name, "/events") {
			continue // it lists how calls ended before it
		}
		if strings.Contains(x.text, "does not answer") || strings.Contains(x.text, "is alive but did not complete the call") {
			reasons++
			if !strings.Contains(x.text, "sandpit stop ") && !strings.Contains(x.text, "sandpit rm ") && !strings.Contains(x.text, "sandpit restart ") {
				t.Errorf("%s does not say what to do: %.500s", x.name, x.text)
			}
		}
	}
	t.Logf("%d calls, %d of them ended with the reason; the longest took %v", len(results), reasons, results[0].took)
	if len(results) < 60 || reasons < 40 {
		t.Errorf("%d calls, %d of which say why they end: the sandboxes do not hang", len(results), reasons)
	}
	for _, name := range []string{"DELETE /v1/sandboxes/{id}", "POST /v1/sandboxes/{id}/stop", "cli rm", "cli restart"} {
		i := slices.IndexFunc(results, func(x result) bool { return x.name == name })
		if text := results[i].text; !strings.HasPrefix(text, "2") && !strings.HasPrefix(text, "<nil>") {
			t.Errorf("%s must help: %s", name, text)
		}
	}
}

// TestNoCallHangs makes every call of every front end while the guests of sandboxes hang in
// every way.
func TestNoCallHangs(t *testing.T) {
	t.Parallel()
	for name, stall := range map[string]fake.Stall{
		"stopped": {Stopped: true},
		"mute":    {Mute: true},
		"slow":    {Pause: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			world := newWorld(t)
			world.SetLiveness(hangBounds)
			r := newHangRig(t, fakes(world), "fake")
			for _, id := range r.everyBox(t) {
				if err := world.Stall(id, stall); err != nil {
					t.Fatal(err)
				}
			}
			r.try(t, 40*time.Second)
		})
	}
}

// TestNoCallHangsInside has root inside of real sandboxes stop the first process, with the
// bounds of every server.
func TestNoCallHangsInside(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("it takes a minute")
	}
	r := newHangRig(t, registrations(), "gvisor")
	for _, id := range r.everyBox(t) {
		r.http(http.MethodPost, "/v1/sandboxes/"+string(id)+"/run", `{"command": "kill -STOP 1", "user": "root", "detach": true}`)(t.Context())
	}
	// 30 s until the first process is known to be silent, and 6 s for each further question; a
	// command of a session is stopped then, which is two questions and twice 10 s at most.
	r.try(t, 75*time.Second)
}

// everyBox lists all sandboxes of the server.
func (r *hangRig) everyBox(t *testing.T) []sandpit.ID {
	t.Helper()
	var page struct {
		Items []sandpit.Sandbox `json:"items"`
	}
	if err := json.Unmarshal([]byte(r.ask(http.MethodGet, "/v1/sandboxes", "", http.StatusOK)), &page); err != nil {
		t.Fatal(err)
	}
	ids := make(map[sandpit.ID]bool)
	for _, s := range page.Items {
		ids[s.ID] = true
	}
	if len(ids) < len(endingCalls)+2 {
		t.Fatalf("%d sandboxes", len(ids))
	}
	return slices.Collect(maps.Keys(ids))
}
