package agent_test

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/script"
)

// liar is an MCP server with many tools of hostile names and schemas. It announces changes all the time,
// and ends during a call of die.
const liar = `import json, sys
names = ["terminate", "a b", "a_b", "a.b", "a b", "die"] + ["tool%03d" % i for i in range(500)]
schemas = [{"type": "object", "anyOf": [{"required": ["x"]}]}, {"type": "object", "properties": {"x y": {"$ref": "https://example.com/x"}}}]
def say(m): print(json.dumps(dict(m, jsonrpc="2.0")), flush=True)
for line in sys.stdin:
    r = json.loads(line)
    result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {"listChanged": True}}, "serverInfo": {"name": "s", "version": "1"}}
    if r["method"] == "tools/list": result = {"tools": [{"name": n, "description": n, "inputSchema": schemas[i % 2]} for i, n in enumerate(names)]}
    if r["method"] == "tools/call":
        for i in range(300): say({"method": "notifications/tools/list_changed"})
        if r["params"]["name"] == "die": sys.exit(3)
        result = {"content": [{"type": "text", "text": "ran " + r["params"]["name"] + "x" * 300000}]}
    if r["method"] == "server/discover": say({"id": r["id"], "error": {"code": -32601, "message": "no"}})
    elif "id" in r: say({"id": r["id"], "result": result})
`

// observer passes requests to a model and keeps the names and schemas of their tools.
type observer struct {
	model.Model

	mu    sync.Mutex
	tools [][]model.Tool
}

func (m *observer) Generate(ctx context.Context, r model.Request, onDelta func(model.Delta)) (model.Response, error) {
	m.mu.Lock()
	m.tools = append(m.tools, r.Tools)
	m.mu.Unlock()
	return m.Model.Generate(ctx, r, onDelta)
}

// TestServerLies has an MCP server that lies. The tools of the agent keep their names, every request has
// as many tools as vendors accept, with names and schemas that they accept, and each fact is reported once.
func TestServerLies(t *testing.T) {
	t.Parallel()
	var seen *observer
	k := newKit(t, protocols["messages"], []script.Turn{
		turn("", "mcp_liar_tool001", map[string]any{}), turn("^ran tool001x", "mcp_liar_die", map[string]any{}),
		turn("^ERROR: MCP server liar: [^$]*its program has exited", "mcp_liar_tool002", map[string]any{}), finish("^ran tool002x", "survived"),
	}, func(_ *kit, o *agent.Options) {
		seen = &observer{Model: o.Model}
		o.Model = seen
		o.MCPServers = map[string]agent.MCPServer{"liar": {Command: "python3", Args: []string{"-c", liar}}}
	})
	k.want(agent.Finished, "survived")
	for _, tools := range seen.tools {
		names := map[string]bool{}
		for _, tool := range tools {
			names[tool.Name] = true
			if strings.HasPrefix(tool.Name, "mcp_liar") && string(tool.Schema) != `{"type":"object"}` {
				t.Errorf("%s has the schema %s", tool.Name, tool.Schema)
			}
		}
		if len(tools) != 128 || len(names) != 128 {
			t.Errorf("%d tools with %d names", len(tools), len(names))
		}
	}
	var notices []string
	for _, e := range k.events {
		if e.Kind == agent.EventNotice {
			notices = append(notices, e.Text)
		}
	}
	if len(seen.tools) != 4 || len(notices) < 2 || len(notices) > 6 {
		t.Errorf("%d requests, notices %q", len(seen.tools), notices)
	}
}

// TestLostWithServers has the sandbox end, and then not respond, between two calls of an agent with MCP
// servers. The model learns of it, as it does without servers.
func TestLostWithServers(t *testing.T) {
	t.Parallel()
	wakes := 0
	list := func(expect, path string) script.Turn { return turn(expect, "file_list", map[string]any{"path": path}) }
	k := newKit(t, protocols["direct"], []script.Turn{
		list("", "/"), list("^[^(]", "/usr"), list(`^\(The sandbox has ended. This is a new one`, "/tmp"), finish("^[^(]", "done"),
	}, func(_ *kit, o *agent.Options) {
		open := o.Open
		o.Open = func(ctx context.Context) (agent.Sandbox, error) {
			s, err := open(ctx)
			guest := s.Guest
			s.Wake = func(context.Context) (sandpit.Guest, error) {
				switch wakes++; wakes {
				case 3: // before the second step
					return nil, sandpit.Errorf(sandpit.NotFound, "it was deleted")
				case 6: // before the third
					return nil, sandpit.Errorf(sandpit.Unavailable, "the server restarts")
				}
				return guest, nil
			}
			return s, err
		}
		o.MCPServers = map[string]agent.MCPServer{"none": {Command: "/nothing/here"}}
	})
	k.want(agent.Finished, "done")
	if len(k.boxes) != 2 || !slices.ContainsFunc(k.events, func(e agent.Event) bool {
		return e.Kind == agent.EventNotice && e.Text == "the MCP servers are not reached: the server restarts"
	}) {
		t.Errorf("%d sandboxes\n%s", len(k.boxes), k.log())
	}
}
