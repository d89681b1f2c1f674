package mcp_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// insideServer is an MCP server in Python.
const insideServer = `import json, sys
for line in sys.stdin:
    r = json.loads(line)
    result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    if r["method"] == "tools/call": result = {"content": [{"type": "text", "text": "from the server inside"}]}
    if r["method"] == "server/discover": print(json.dumps({"jsonrpc": "2.0", "id": r["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
    elif "id" in r: print(json.dumps({"jsonrpc": "2.0", "id": r["id"], "result": result}), flush=True)
`

// writeServers returns a file that configures it.
func writeServers(t *testing.T) string {
	t.Helper()
	config := filepath.Join(t.TempDir(), "mcp.json")
	data, err := json.Marshal(map[string]any{"mcpServers": map[string]any{"inside": map[string]any{"command": "python3", "args": []string{"-c", insideServer}}}})
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
