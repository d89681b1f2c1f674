package daemon

import (
	"context"
	"encoding/json"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/coder/websocket"
	"golang.org/x/crypto/ssh"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// door is a way by which a client starts a program in a sandbox.
type door struct {
	// start starts a shell command, and returns what the client is answered.
	start func(t *testing.T, command string) string
	// silent says that the answer has no output of the command.
	silent bool
	// idle says why the sandbox has no time without use. Default: it has.
	idle string
}

// doors are all ways. A route that may start a program and names no door fails
// TestRoutesHaveDoors.
func (w *tenancy) doors(t *testing.T) map[string]door {
	t.Helper()
	at := "/v1/sandboxes/" + w.ids["sandbox"]
	session := field(t, w.must(t, w.bob, http.MethodPost, at+"/sessions", `{"name": "doors"}`), "id")
	start := map[string]any{"process": map[string]any{"cmd": "/bin/sh", "args": []string{"-c", "COMMAND"}}}
	terminal := map[string]any{"process": start["process"], "pty": map[string]any{"size": map[string]any{"cols": 80, "rows": 24}}}
	guest := at + "/envd/process.Process/Start"
	e2b := http.Header{"E2b-Sandbox-Id": {w.ids["sandbox"]}, "E2b-Sandbox-Port": {"49983"}, "X-Access-Token": {w.guestToken(t)}}
	tool := w.openMCP(t)
	toolbox := "/toolbox/" + w.ids["sandbox"] + "/process/"
	w.must(t, w.bob, http.MethodPost, toolbox+"session", `{"sessionId": "doors"}`)
	return map[string]door{
		"run":               {start: w.post(at+"/run", map[string]any{"command": "COMMAND"})},
		"run args":          {start: w.post(at+"/run", map[string]any{"args": []string{"sh", "-c", "COMMAND"}})},
		"run through env":   {start: w.post(at+"/run", map[string]any{"args": []string{"env", "A=1", "sh", "-c", "COMMAND"}})},
		"run detached":      {start: w.post(at+"/run", map[string]any{"command": "COMMAND", "detach": true}), silent: true},
		"session":           {start: w.post(at+"/sessions/"+session+"/run", map[string]any{"command": "COMMAND"})},
		"job":               {start: w.post(at+"/sessions/"+session+"/jobs", map[string]any{"command": "COMMAND"}), silent: true},
		"job in a terminal": {start: w.post(at+"/sessions/"+session+"/jobs", map[string]any{"command": "COMMAND", "terminal": map[string]any{"cols": 80, "rows": 24}}), silent: true},
		"terminal":          {start: w.openTerminal},
		"guest":             {start: w.startByGuest(guest, nil, start, false), silent: true},
		"guest, packed":     {start: w.startByGuest(guest, nil, start, true), silent: true},
		"guest, terminal":   {start: w.startByGuest(guest, nil, terminal, false), silent: true},
		"e2b":               {start: w.startByGuest("/process.Process/Start", e2b, start, false), silent: true},
		"aio":               {start: w.post("/aio/"+w.ids["sandbox"]+"/v1/shell/exec", map[string]any{"command": "COMMAND"})},
		"aio, asynchronous": {start: w.post("/aio/"+w.ids["sandbox"]+"/v1/shell/exec", map[string]any{"command": "COMMAND", "async_mode": true, "id": "other"}), silent: true},
		"daytona":           {start: w.post(toolbox+"execute", map[string]any{"command": "COMMAND"})},
		"daytona, as input": {start: func(t *testing.T, command string) string {
			t.Helper()
			return w.post(toolbox+"execute", map[string]any{"command": "COMMAND"})(t, command+"\n# "+strings.Repeat("long ", 40<<10))
		}},
		"daytona, session": {start: w.post(toolbox+"session/doors/exec", map[string]any{"command": "COMMAND"})},
		"mcp": {start: func(t *testing.T, command string) string {
			t.Helper()
			return tool(t, "shell_exec", map[string]any{"command": command})
		}},
		"ssh":           {start: w.bySSH(false)},
		"ssh, terminal": {start: w.bySSH(true)},
		"command line":  {start: w.byCommandLine},
		"template": {
			start: func(t *testing.T, command string) string {
				t.Helper()
				return w.build(t, map[string]any{"steps": []any{map[string]any{"run": []string{"sh", "-c", command}}}})
			},
			silent: true, idle: "a build ends by itself",
		},
		"template, start": {
			start: func(t *testing.T, command string) string {
				t.Helper()
				return w.build(t, map[string]any{"start": command})
			},
			silent: true, idle: "a build ends by itself",
		},
		"template, ready check": {
			start: func(t *testing.T, command string) string {
				t.Helper()
				return w.build(t, map[string]any{"start": "sleep 100", "ready": map[string]any{"command": command, "timeout_seconds": 5}})
			},
			silent: true, idle: "a build ends by itself",
		},
	}
}

// TestDoors crosses every way to start a program with every setting that holds for programs.
func TestDoors(t *testing.T) {
	t.Parallel()
	w := newTenancy(t, "[ssh]", "listen = '127.0.0.1:0'", "[sandbox]", "command_screen = 'deny'", "screen_deny = ['expr *forbidden*']", "screen_allow = ['mkfs.harmless']")
	for name, d := range w.doors(t) {
		t.Run(name, func(t *testing.T) { w.tryDoor(t, d) })
	}
}

// tryDoor starts a command that is refused, and one that is not.
func (w *tenancy) tryDoor(t *testing.T, d door) {
	t.Helper()
	refusals := w.countEvents(t, "it was refused before it started")
	if got := d.start(t, mentioned); !strings.Contains(got, "potentially dangerous operation") || strings.Contains(got, "it ran\n") {
		t.Errorf("command screen: a command that is refused: %s", got)
	}
	if got := d.start(t, "expr is-forbidden"); !strings.Contains(got, "refused by a rule") {
		t.Errorf("command screen: a command that a configured rule refuses: %s", got)
	}
	await(t, "audit: the refusal is an event", func() bool { return w.countEvents(t, "it was refused before it started") > refusals })
	for line := range strings.SplitSeq(w.trail(t), "},{") {
		if strings.Contains(line, "/dev/sda") {
			t.Errorf("audit: an event has what the command says: %s", line)
		}
	}

	started, ended, used := w.countStarts(t), w.countEnds(t), w.lastUse(t)
	got := d.start(t, "uname -r; expr 40 + 2; echo cpus=$(nproc)/; false && mkfs.harmless /dev/sda")
	if strings.Contains(got, "potentially dangerous") {
		t.Errorf("command screen: a command that is not refused: %s", got)
	}
	if !d.silent && !strings.Contains(got, "cpus=1/") {
		t.Errorf("limits: the command sees other processors than its sandbox has: %s", got)
	}
	if !d.silent && (!strings.Contains(got, "gvisor") || !strings.Contains(got, "42")) {
		t.Errorf("confinement: the command did not run in the sandbox: %s", got)
	}
	await(t, "audit: the start is an event", func() bool { return w.countStarts(t) > started })
	await(t, "metrics: the end is counted", func() bool { return w.countEnds(t) > ended })
	if d.idle == "" {
		await(t, "activity: the sandbox was used", func() bool { return w.lastUse(t).After(used) })
	}
}

// await waits until something is so.
func await(t *testing.T, what string, is func() bool) {
	t.Helper()
	for end := time.Now().Add(patience / 4); !is(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			t.Errorf("%s: it does not happen", what)
			return
		}
	}
}

func (w *tenancy) trail(t *testing.T) string {
	t.Helper()
	return string(w.must(t, w.bob, http.MethodGet, "/v1/events?limit=999", ""))
}

func (w *tenancy) countEvents(t *testing.T, text string) int {
	t.Helper()
	return strings.Count(w.trail(t), text)
}

func (w *tenancy) countStarts(t *testing.T) int {
	t.Helper()
	trail := w.trail(t)
	return strings.Count(trail, `"action":"run command"`) + strings.Count(trail, `"action":"open terminal"`)
}

var endedCommands = regexp.MustCompile(`(?m)^sandpit_commands_total\{[^}]*\} ([0-9.e+]+)$`)

// countEnds returns how many commands have ended by the metrics.
func (w *tenancy) countEnds(t *testing.T) (sum float64) {
	t.Helper()
	for _, m := range endedCommands.FindAllStringSubmatch(string(w.must(t, w.admin, http.MethodGet, "/metrics", "")), -1) {
		n, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += n
	}
	return sum
}

// lastUse returns when one of bob's sandboxes was used last.
func (w *tenancy) lastUse(t *testing.T) (last time.Time) {
	t.Helper()
	var page struct {
		Items []struct {
			LastUsed time.Time `json:"last_used_at"`
		} `json:"items"`
	}
	if err := json.Unmarshal(w.must(t, w.bob, http.MethodGet, "/v1/sandboxes", ""), &page); err != nil {
		t.Fatal(err)
	}
	for _, s := range page.Items {
		if s.LastUsed.After(last) {
			last = s.LastUsed
		}
	}
	return last
}

// post returns a door by a request whose body has the command in place of COMMAND.
func (w *tenancy) post(path string, body map[string]any) func(*testing.T, string) string {
	return func(t *testing.T, command string) string {
		t.Helper()
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		quoted, err := json.Marshal(command)
		if err != nil {
			t.Fatal(err)
		}
		_, answer := w.request(t, w.bob, http.MethodPost, path, strings.ReplaceAll(string(text), `"COMMAND"`, string(quoted)))
		return string(answer)
	}
}

// openTerminal runs a command in a terminal of the API.
func (w *tenancy) openTerminal(t *testing.T, command string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/v1/sandboxes/"+w.ids["sandbox"]+"/terminal", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	query := req.URL.Query()
	query.Set("command", command)
	req.URL.RawQuery = query.Encode()
	conn, res, err := websocket.Dial(ctx, req.URL.String(), &websocket.DialOptions{HTTPClient: w.client, HTTPHeader: http.Header{"X-Api-Key": {w.bob}}}) //nolint:bodyclose // the dialer has read and closed it
	if err != nil {
		if res == nil || res.Body == nil {
			return err.Error()
		}
		text := make([]byte, 4<<10)
		n, _ := res.Body.Read(text) // the dialer has kept its beginning
		return err.Error() + string(text[:n])
	}
	defer func() { _ = conn.CloseNow() }() // it may be closed
	var all strings.Builder
	for {
		_, text, err := conn.Read(ctx)
		if err != nil {
			return all.String() + err.Error()
		}
		all.Write(text)
	}
}

func (w *tenancy) dialSSH(t *testing.T) *ssh.Client {
	t.Helper()
	token := field(t, w.must(t, w.bob, http.MethodPost, "/v1/sandboxes/"+w.ids["sandbox"]+"/ssh", "{}"), "token")
	c, err := ssh.Dial("tcp", w.ssh, &ssh.ClientConfig{
		User: w.ids["sandbox"], Auth: []ssh.AuthMethod{ssh.Password(token)}, HostKeyCallback: ssh.InsecureIgnoreHostKey(), // it is the test's
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// bySSH returns a way that starts a command by SSH.
func (w *tenancy) bySSH(terminal bool) func(*testing.T, string) string {
	return func(t *testing.T, command string) string {
		t.Helper()
		return overSSH(t, w.dialSSH(t), command, terminal)
	}
}

func overSSH(t *testing.T, c *ssh.Client, command string, terminal bool) string {
	t.Helper()
	defer c.Close() // the sandbox is in use until then
	s, err := c.NewSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if terminal {
		if err := s.RequestPty("xterm", 24, 80, nil); err != nil {
			t.Fatal(err)
		}
	}
	out, err := s.CombinedOutput(command)
	if err != nil {
		return string(out) + err.Error()
	}
	return string(out)
}

// byCommandLine runs a command with sandpit exec.
func (w *tenancy) byCommandLine(t *testing.T, command string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testengine.Path(t), "exec", w.ids["sandbox"], "--", "sh", "-c", command)
	cmd.Env = append(testengine.Environ(t.TempDir()), "SANDPIT_URL="+w.url, "SANDPIT_API_KEY="+w.bob)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return string(out) + err.Error()
	}
	return string(out)
}

// routeDoors says by which door a route starts programs; "" is by none. All that a route of AIO
// or MCP starts, it starts by tools, whose commands come by the doors of shells and guests.
func routeDoors() map[string]string {
	const box = "/v1/sandboxes/{id}"
	lines := map[string]string{
		"POST " + box + "/run": "run", "POST " + box + "/sessions": "session", "POST " + box + "/sessions/{sid}/run": "session",
		"POST " + box + "/sessions/{sid}/jobs": "job", "GET " + box + "/terminal": "terminal", "GET " + box + "/sessions/{sid}/attach": "job in a terminal",
		"POST " + box + "/envd/{path...}": "guest", "POST /v1/builds/{build}": "template", "POST /v2/templates/{id}/builds/{build}": "template",
		"POST /v1/builtins/{name}": "template", "POST " + box + "/ssh": "ssh", "POST /mcp": "mcp", "POST /mcp/{$}": "mcp",
		// These clone a repository or run the start command of a template, by the guest's client.
		"POST /v1/sandboxes": "guest", "POST /sandboxes": "guest", "POST /v2/sandboxes": "guest",
	}
	for _, pattern := range []string{"/sandbox", "/snapshots"} { // these can build an image
		lines["POST /api"+pattern] = "template"
	}
	const daytona = "/api/sandbox/{sandbox}"
	for _, pattern := range []string{
		daytona + "/archive", daytona + "/autoarchive/{interval}", daytona + "/autodelete/{interval}", daytona + "/autopause/{interval}",
		daytona + "/autostop/{interval}", daytona + "/backup", daytona + "/fork", daytona + "/last-activity", daytona + "/network-settings", daytona + "/pause",
		daytona + "/ports/{port}/signed-preview-url/{token}/expire", daytona + "/public/{public}", daytona + "/recover", daytona + "/resize",
		daytona + "/signing-key/rotate", daytona + "/snapshot", daytona + "/ssh-access", daytona + "/start", daytona + "/stop", daytona + "/ttl/{interval}",
		"/api/api-keys", "/api/secret", "/api/snapshots/{snapshot}/activate", "/api/snapshots/{snapshot}/deactivate", "/api/volumes", "/api/warm-pools",
		box + "/archive", box + "/checkpoint", box + "/pause", box + "/restore", box + "/resume", box + "/start", box + "/stop", box + "/fork", box + "/rollback", box + "/resize",
		box + "/announce", box + "/tokens/revoke", box + "/ports/{port}/ticket", box + "/ports/{port}/url", box + "/commands/{cid}/signal", box + "/files/mkdir", box + "/files/move",
		box + "/sessions/{sid}/jobs/{jid}/signal", box + "/sessions/{sid}/jobs/{jid}/stdin", "/v1/queue/{id}/retry", "/v1/keys", "/v1/snapshots", "/v1/snapshots/import",
		"/v1/images/pull", "/v1/templates", "/v1/templates/{template}/tags", "/v1/volumes", "/v1/ssh-keys",
		"/sandboxes/{id}/connect", "/v2/sandboxes/{id}/connect", "/sandboxes/{id}/fork", "/sandboxes/{id}/pause", "/sandboxes/{id}/refreshes", "/sandboxes/{id}/resume",
		"/sandboxes/{id}/snapshots", "/sandboxes/{id}/timeout", "/templates/tags", "/v3/templates", "/volumes", "/api-keys", "/templates", "/templates/{id}",
		"/templates/{id}/builds/{build}", "/v2/templates", "/nodes/{id}", "/access-tokens", "/volumecontent/{id}/{what}", "/secrets", "/secrets/{id}",
	} {
		lines["POST "+pattern] = ""
	}
	return lines
}

// TestRoutesHaveDoors fails for a new route until routeDoors says by which door of TestDoors it
// starts programs.
func TestRoutesHaveDoors(t *testing.T) {
	t.Parallel()
	w := newTenancy(t, "[ssh]", "listen = '127.0.0.1:0'")
	lines, doors := routeDoors(), w.doors(t)
	for _, pattern := range w.patterns {
		name, known := lines[pattern]
		delete(lines, pattern)
		if strings.HasPrefix(pattern, "POST /aio/") || strings.HasPrefix(pattern, "GET /aio/") {
			name, known = "aio", true
		}
		if isToolbox(pattern) {
			name, known = "daytona", true
		}
		if !known && strings.HasPrefix(pattern, "POST ") {
			t.Errorf("route %q has no line in routeDoors: add one that names its door, or says that it starts no program", pattern)
		}
		if _, there := doors[name]; name != "" && !there {
			t.Errorf("route %q starts programs by the door %q, which TestDoors does not try", pattern, name)
		}
	}
	for pattern := range lines {
		t.Errorf("routeDoors has a line for %q, and there is no such route", pattern)
	}
}
