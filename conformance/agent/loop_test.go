package agent_test

import (
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model/script"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// changingServer is an MCP server whose tools are the lines of a file in the sandbox. It announces no
// changes. Each call returns the label of the server.
const changingServer = `import json, os, sys
for line in sys.stdin:
    r = json.loads(line)
    result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    if r["method"] == "tools/list": result = {"tools": [{"name": n, "inputSchema": {"type": "object"}} for n in open("/workspace/tools").read().split()]}
    if r["method"] == "tools/call": result = {"content": [{"type": "text", "text": sys.argv[1] + " " + r["params"]["name"]}]}
    if r["method"] == "server/discover": print(json.dumps({"jsonrpc": "2.0", "id": r["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
    elif "id" in r: print(json.dumps({"jsonrpc": "2.0", "id": r["id"], "result": result}), flush=True)
`

// TestServersAtRunTime connects, replaces and disconnects an MCP server while a task runs, and changes
// its tools, which the model gets after five steps at the latest.
func TestServersAtRunTime(t *testing.T) {
	t.Parallel()
	server := func(label string) agent.MCPServer {
		return agent.MCPServer{Command: "python3", Args: []string{"-c", changingServer, label}}
	}
	var k *kit
	control := func(ctx context.Context, arguments rawMessage) (string, error) {
		var in struct{ Do string }
		if err := json.Unmarshal(arguments, &in); err != nil {
			return "", err
		}
		switch in.Do {
		case "connect":
			return "connected", k.ConnectServer("one", server("first"))
		case "replace":
			return "replaced", k.ConnectServer("one", server("second"))
		case "both": // before the servers are used again
			return "both", errors.Join(k.ConnectServer("one", server("third")), k.DisconnectServer("one"))
		case "unknown":
			return "", k.DisconnectServer("none")
		}
		return "all", k.DisconnectServer("")
	}
	do := func(expect, what string) script.Turn { return turn(expect, "control", map[string]any{"do": what}) }
	n := 0
	named := func(expect, name string, tools ...string) script.Turn {
		n++ // equal calls would count as a model that is stuck
		one := turn(expect, name, map[string]any{"n": n})
		one.Expect.Tools = tools
		return one
	}
	turns := []script.Turn{
		run("", "echo add > tools"), do("SUCCESS", "unknown"), do(`MCP server "none" not found`, "connect"),
		named("connected", "mcp_one_add", "mcp_one_add"),
		run("first add", "echo add sub > tools"),
		named("SUCCESS", "mcp_one_add", "mcp_one_sub"), // the sixth step
		run("first add", "echo sub > tools"), do("SUCCESS", "replace"), named("replaced", "mcp_one_sub", "mcp_one_sub"), do("second sub", "both"),
		named("both", "mcp_one_sub"), // which is gone
		run("unknown tool", "ps -eo args | grep -c '[i]mport json, os, sys'; true"),
		do(`(?m)^0$`, "connect"), named("connected", "mcp_one_sub", "mcp_one_sub"), run("first sub", "echo add > tools"),
		named("SUCCESS", "mcp_one_add", "mcp_one_add"), // the sixteenth step
		do("first add", "all"), finish("all", "done"),
	}
	k = newKit(t, protocols["direct"], turns, func(_ *kit, o *agent.Options) {
		o.More = []agent.Tool{{Name: "control", Description: "x", Call: control}}
	})
	k.want(agent.Finished, "done")
	for _, notice := range []string{"MCP server one has a new tool: mcp_one_sub", "MCP server one has removed a tool: mcp_one_sub"} {
		if !strings.Contains(k.log(), notice) {
			t.Errorf("no notice %q in:\n%s", notice, k.log())
		}
	}
	if got := k.ConnectedServers(); len(got) != 0 {
		t.Errorf("connected: %v", got)
	}
}

// TestBrowserState shows the open page to the model shortly after a browser tool whose result does not
// have it. It is in one request, and neither in the conversation nor in the transcript.
func TestBrowserState(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("chromium"); err != nil {
		testengine.Skip(t, "this machine has no chromium")
	}
	page := map[string]any{"url": "data:text/html,<title>Shop</title><button>Buy tea</button>"}
	state := `The browser now:\n[^$]*button "Buy tea"`
	plan := map[string]any{"steps": []map[string]any{{"text": "one"}}}
	later := turn("", "plan", plan)
	later.Expect.Not, later.Expect.Last = "The browser now", "0 of 1 steps"
	k := newKit(t, protocols["direct"], []script.Turn{
		turn("the task$", "browser_open", page), turn(state, "plan", plan), later, turn("", "browser_press", map[string]any{"key": "Tab"}), turn(state, "plan", plan),
		finish("", "seen"),
	}, func(_ *kit, o *agent.Options) { o.Tools = []string{"default", "browser"} })
	k.want(agent.Finished, "seen")
	if strings.Contains(k.transcript.String(), "The browser now") {
		t.Error("the state of the browser is in the transcript")
	}
}
