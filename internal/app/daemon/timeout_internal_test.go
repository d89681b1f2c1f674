package daemon

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// TestCommandTimeout starts a command that takes too long, by every way whose requests may
// leave the time limit to sandbox.timeout.
func TestCommandTimeout(t *testing.T) {
	t.Parallel()
	w := newTenancy(t, "[sandbox]", "timeout = 1")
	at := "/v1/sandboxes/" + w.ids["sandbox"]
	const command = `sleep 50; echo "it"ran`
	post := func(path string, body map[string]any) func(*testing.T) string {
		return func(t *testing.T) string {
			t.Helper()
			text, err := json.Marshal(body)
			if err != nil {
				t.Fatal(err)
			}
			_, answer := w.request(t, w.bob, http.MethodPost, path, string(text))
			return string(answer)
		}
	}
	session := field(t, w.must(t, w.bob, http.MethodPost, at+"/sessions", `{"name": "limited"}`), "id")
	start := map[string]any{"process": map[string]any{"cmd": "/bin/sh", "args": []string{"-c", "COMMAND"}}}
	guest := w.startByGuest(at+"/envd/process.Process/Start", http.Header{wire.HeaderCommandTimeout: {wire.DefaultCommandTimeout}}, start, false)
	mcp := w.openMCP(t)
	ways := map[string]func(*testing.T) string{
		"run":      post(at+"/run", map[string]any{"command": command}),
		"run args": post(at+"/run", map[string]any{"args": []string{"sh", "-c", command}}),
		"session":  post(at+"/sessions/"+session+"/run", map[string]any{"command": command}),
		"aio":      post("/aio/"+w.ids["sandbox"]+"/v1/shell/exec", map[string]any{"command": command}),
		"daytona":  post("/toolbox/"+w.ids["sandbox"]+"/process/execute", map[string]any{"command": command}),
		"mcp":      func(t *testing.T) string { t.Helper(); return mcp(t, "shell_exec", map[string]any{"command": command}) },
		"exec":     func(t *testing.T) string { t.Helper(); return guest(t, command) },
	}
	for name, run := range ways {
		t.Run(name, func(t *testing.T) {
			begin := time.Now()
			got := run(t)
			if took := time.Since(begin); took > 40*time.Second || strings.Contains(got, "itran") {
				t.Errorf("a command of 50 s took %s and gave %s", took, got)
			}
			if text := strings.ToLower(got); !strings.Contains(text, "time") && !strings.Contains(text, "deadline") && !strings.Contains(text, "hard") {
				t.Errorf("the answer does not mention the time limit: %s", got)
			}
		})
	}
}
