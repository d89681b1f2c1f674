package mcp_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
)

// insideServer is an MCP server in Python.
const insideServer = `import json, sys
for line in sys.stdin:
    r = json.loads(line)
    result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    if r["method"] == "tools/list": result = {"tools": [{"name": n, "description": n[:9], "inputSchema": {"type": "object", "properties": {"a": {"type": "number"}}}} for n in ["any", "with spaces / und Ümlaut", "with spaces _ und _mlaut", "x" * 100, "x" * 101, "execute"]]}
    if r["method"] == "tools/call": result = {"content": [{"type": "text", "text": "from the server inside" + (": " + r["params"]["name"] if r["params"]["name"] != "any" else "")}]}
    if r["method"] == "server/discover": print(json.dumps({"jsonrpc": "2.0", "id": r["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
    elif "id" in r: print(json.dumps({"jsonrpc": "2.0", "id": r["id"], "result": result}), flush=True)
`

// writeServers returns a file that configures it, and a server that does not start.
func writeServers(t *testing.T) string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "mcp.json")
	data, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"inside": map[string]any{"command": "python3", "args": []string{"-c", insideServer}}, "broken": map[string]any{"command": "/nothing/here"}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return config
}

// TestServers has a client use another server, which runs in its sandbox.
func TestServers(t *testing.T) {
	t.Parallel()
	config := writeServers(t)
	s := connect(t, "--mcp-config", config, "--tools", "mcp")
	if text := call(t, s, "mcp_list_servers", nil); !strings.Contains(text, "inside (stdio, not started)") {
		t.Errorf("servers: %s", text)
	}
	if text := call(t, s, "mcp_execute", map[string]any{"server_name": "inside", "tool_name": "any"}); text != "from the server inside" {
		t.Errorf("call: %s", text)
	}
}

// TestServersOverHTTP has sessions at /mcp use servers that the administrator configures.
func TestServersOverHTTP(t *testing.T) {
	t.Parallel()
	s := newServer(t, "SANDPIT_SERVER_MCP_CONFIG="+writeServers(t))
	one := s.connect(t, s.key(t, "ann"), "", nil)
	if text := call(t, one, "mcp_list_servers", nil); !strings.Contains(text, "inside (stdio, not started)") {
		t.Errorf("servers: %s", text)
	}
	if text := call(t, one, "mcp_execute", map[string]any{"server_name": "inside", "tool_name": "any"}); text != "from the server inside" {
		t.Errorf("call: %s", text)
	}
	if text := call(t, one, "file_list", nil); strings.Contains(text, "ERROR") {
		t.Errorf("the default set is missing: %s", text)
	}
}

// TestServerToolNames lists the tools of configured servers under names of their own, and calls them. A
// client without the category mcp has none of them, and its list creates no sandbox.
func TestServerToolNames(t *testing.T) {
	t.Parallel()
	s := newServer(t, "SANDPIT_SERVER_MCP_CONFIG="+writeServers(t))
	key := s.key(t, "ann")
	plain := s.connect(t, key, "?tools=file", nil)
	for _, name := range toolNames(t, plain) {
		if strings.HasPrefix(name, "mcp_") {
			t.Errorf("a client that chose other tools gets %s", name)
		}
	}
	s.awaitBoxes(t, "ann", 0)
	one := s.connect(t, key, "", nil)
	if text := call(t, one, "mcp_inside_any", map[string]any{"a": 1}); text != "from the server inside" { // before any list
		t.Errorf("call: %s", text)
	}
	names, seen := toolNames(t, one), map[string]bool{}
	servers := 0
	for _, name := range names {
		if seen[name] || !regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`).MatchString(name) {
			t.Errorf("invalid or repeated name %q", name)
		}
		seen[name] = true
		if strings.HasPrefix(name, "mcp_inside_") {
			servers++
		}
	}
	if servers != 6 || !seen["mcp_inside_any"] || !seen["mcp_execute"] || !seen["file_read"] {
		t.Errorf("%d tools of the server in %q", servers, names)
	}
	for _, name := range names {
		if strings.HasPrefix(name, "mcp_inside_with") {
			if text := call(t, one, name, nil); !strings.HasPrefix(text, "from the server inside: with spaces ") {
				t.Errorf("%s: %s", name, text)
			}
		}
	}
	if _, err := one.CallTool(t.Context(), &sdk.CallToolParams{Name: "mcp_inside_none"}); err == nil {
		t.Error("a tool that no server has is called")
	}
	s.awaitBoxes(t, "ann", 1)
}

// TestServersOfAIO has the AIO interface of a sandbox use the configured servers.
func TestServersOfAIO(t *testing.T) {
	t.Parallel()
	s := newServer(t, "SANDPIT_SERVER_MCP_CONFIG="+writeServers(t))
	key := s.key(t, "aio")
	mine, err := client.New(client.Options{URL: s.url, Key: key})
	if err != nil {
		t.Fatal(err)
	}
	defer mine.Close()
	box, err := mine.Sandboxes.Create(t.Context(), client.CreateRequest{Spec: sandpit.Spec{Image: "host"}})
	if err != nil {
		t.Fatal(err)
	}
	a := aio{t, s.url + "/aio/" + string(box.ID), key}
	a.ask("GET /v1/mcp/servers", 200, `"success":true`, `"data":["broken","inside"]`)
	a.ask("GET /v1/mcp/inside/tools", 200, `"success":true`, `"any"`)
	a.ask(`POST /v1/mcp/inside/tools/any {"a": 1}`, 200, "from the server inside")
	if err := box.Delete(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// toolNames returns the names of the list of tools.
func toolNames(t *testing.T, s *sdk.ClientSession) (names []string) {
	t.Helper()
	list, err := s.ListTools(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, one := range list.Tools {
		names = append(names, one.Name)
	}
	return names
}
