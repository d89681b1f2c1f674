package mcpclient

import (
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// silentServer is a server that never answers a request for its tools.
const silentServer = `import json, sys
for line in sys.stdin:
    r = json.loads(line)
    result = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "s", "version": "1"}}
    if r["method"] == "initialize": print(json.dumps({"jsonrpc": "2.0", "id": r["id"], "result": result}), flush=True)
    elif "id" in r and r["method"] != "tools/list": print(json.dumps({"jsonrpc": "2.0", "id": r["id"], "error": {"code": -32601, "message": "no"}}), flush=True)
`

// TestListTimeout has a server that never lists its tools: the list ends in time.
func TestListTimeout(t *testing.T) {
	t.Parallel()
	s := New(Options{
		listTimeout: 100 * time.Millisecond,
		Config:      Config{"silent": {Type: Stdio, Command: "python3", Args: []string{"-c", silentServer}, Host: true}},
	})
	defer s.Close(t.Context())
	if _, err := s.Tools(t.Context(), "silent"); sandpit.CodeOf(err) != sandpit.Timeout || err.Error() != "MCP server silent: it did not list its tools within 100ms" {
		t.Errorf("%v", err)
	}
}
