package mcpclient_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/mcpclient"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// hostServer is a server whose tool returns its variables and a file, and that has a child.
const hostServer = `import json, os, subprocess, sys
child = subprocess.Popen(["sleep", "1000"])
for line in sys.stdin:
    r = json.loads(line)
    result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    if r["method"] == "tools/call": result = {"content": [{"type": "text", "text": json.dumps([sorted(os.environ), open(sys.argv[1]).read(), child.pid])}]}
    if r["method"] == "server/discover": print(json.dumps({"jsonrpc": "2.0", "id": r["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
    elif "id" in r: print(json.dumps({"jsonrpc": "2.0", "id": r["id"], "result": result}), flush=True)
`

// noGuest fails the test if anything is started in a sandbox.
type noGuest struct {
	sandpit.Processes

	t *testing.T
}

func (g noGuest) Start(_ context.Context, c sandpit.Command) (sandpit.Process, error) {
	g.t.Errorf("started in the sandbox: %q", c.Args)
	return nil, sandpit.Errorf(sandpit.Unavailable, "no sandbox")
}

// TestHostProgram runs a server on this machine: without this process's secrets, and until it is closed.
func TestHostProgram(t *testing.T) {
	if _, err := exec.LookPath("python3"); err != nil {
		testengine.Skip(t, "this machine has no python3")
	}
	t.Setenv("SANDPIT_API_KEY", "secret")
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, []byte("of this machine"), 0o600); err != nil {
		t.Fatal(err)
	}
	s := mcpclient.New(mcpclient.Options{Guest: noGuest{t: t}, User: "nobody", Dir: "/workspace", Env: func() map[string]string {
		return map[string]string{"OF_THE_SANDBOX": "1"}
	}, Config: mcpclient.Config{
		"on":      {Type: mcpclient.Stdio, Command: "python3", Args: []string{"-c", hostServer, file}, Env: map[string]string{"MINE": "yes"}, Host: true},
		"missing": {Type: mcpclient.Stdio, Command: "/nothing/here", Host: true},
		"ends":    {Type: mcpclient.Stdio, Command: "sh", Args: []string{"-c", "echo broken >&2; exit 3"}, Host: true},
	}})
	answer, err := s.Call(t.Context(), "on", "any", nil, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	text := answer.Text
	for part, want := range map[string]bool{"MINE": true, "PATH": true, "of this machine": true, "SANDPIT_API_KEY": false, "OF_THE_SANDBOX": false} {
		if strings.Contains(text, part) != want {
			t.Errorf("%s in %s: want %v", part, text, want)
		}
	}
	for name, want := range map[string]string{"missing": "no such file", "ends": "exit status 3; its last output: broken"} {
		if _, err := s.Call(t.Context(), name, "any", nil, time.Minute); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", name, err, want)
		}
	}
	s.Close(t.Context())
	_, number, _ := strings.Cut(text, "of this machine\", ")
	child, err := strconv.Atoi(strings.TrimSuffix(number, "]"))
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); syscall.Kill(child, 0) == nil; time.Sleep(10 * time.Millisecond) {
		if state, _ := os.ReadFile("/proc/" + strconv.Itoa(child) + "/stat"); strings.Contains(string(state), ") Z ") {
			break // killed, and not awaited by its new parent
		}
		if time.Now().After(end) {
			t.Fatalf("the server's child %d still runs", child)
		}
	}
}

// TestHostURL contacts a server from this machine.
func TestHostURL(t *testing.T) {
	t.Parallel()
	server := sdk.NewServer(&sdk.Implementation{Name: "test", Version: "1"}, nil)
	server.AddTool(&sdk.Tool{Name: "any", InputSchema: map[string]any{"type": "object"}}, func(_ context.Context, r *sdk.CallToolRequest) (*sdk.CallToolResult, error) {
		return &sdk.CallToolResult{Content: []sdk.Content{&sdk.TextContent{Text: r.Extra.Header.Get("X-Key")}}}, nil
	})
	web := httptest.NewServer(sdk.NewStreamableHTTPHandler(func(*http.Request) *sdk.Server { return server }, nil))
	defer web.Close()
	s := mcpclient.New(mcpclient.Options{Guest: noGuest{t: t}, Config: mcpclient.Config{"web": {URL: web.URL, Headers: map[string]string{"X-Key": "a key"}, Host: true}}})
	defer s.Close(t.Context())
	if answer, err := s.Call(t.Context(), "web", "any", nil, time.Minute); err != nil || answer.Text != "a key" {
		t.Errorf("%+v, %v", answer, err)
	}
}

// TestNoFileNamesHost has a file that asks for this machine refused.
func TestNoFileNamesHost(t *testing.T) {
	t.Parallel()
	for _, field := range []string{"host", "Host", "onHost", "-"} {
		if servers, err := mcpclient.Parse([]byte(`{"mcpServers": {"a": {"command": "true", "` + field + `": true}}}`)); err == nil || servers["a"].Host {
			t.Errorf("%s: %+v, %v", field, servers, err)
		}
	}
}
