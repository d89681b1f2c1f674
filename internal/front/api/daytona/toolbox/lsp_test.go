package toolbox_test

import (
	"maps"
	"net/http"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
)

// languageServer is a small language server. It finds functions in open documents, and asks its client for
// settings before it answers for the first time. The word "crash" makes it end.
const languageServer = `#!/usr/bin/env python3
import json, re, sys
docs = {}
def read():
    size = 0
    while True:
        line = sys.stdin.buffer.readline().strip()
        if not line:
            return json.loads(sys.stdin.buffer.read(size)) if size else sys.exit(0)
        if line.lower().startswith(b"content-length:"):
            size = int(line.split(b":")[1])
def send(m):
    text = json.dumps({"jsonrpc": "2.0", **m}).encode()
    sys.stdout.buffer.write(b"Content-Length: %d\r\nContent-Type: x\r\n\r\n" % len(text) + text)
    sys.stdout.buffer.flush()
def functions(uri):
    for n, line in enumerate(docs.get(uri, "").split("\n")):
        for m in re.finditer(r"def (\w+)", line):
            yield {"name": m[1], "kind": 12, "location": {"uri": uri, "range": {
                "start": {"line": n, "character": m.start(1)}, "end": {"line": n, "character": m.end(1)}}}}
while True:
    m = read()
    method, p = m.get("method"), m.get("params")
    if method == "initialize":
        assert p["rootUri"].startswith("file:///")
        send({"method": "window/logMessage", "params": {"message": "x"}})
        send({"id": "settings", "method": "workspace/configuration", "params": {"items": [{}, {}]}})
        answer = read()
        assert answer == {"jsonrpc": "2.0", "id": "settings", "result": [None, None]}, answer
        send({"id": m["id"], "result": {"capabilities": {}}})
    elif method == "textDocument/didOpen":
        docs[p["textDocument"]["uri"]] = p["textDocument"]["text"]
        if "crash" in p["textDocument"]["text"]:
            sys.exit("crashed")
    elif method == "textDocument/didClose":
        del docs[p["textDocument"]["uri"]]
    elif method == "textDocument/documentSymbol":
        send({"id": m["id"], "result": list(functions(p["textDocument"]["uri"]))})
    elif method == "workspace/symbol":
        if p["query"] == "refused":
            send({"id": m["id"], "error": {"code": 1, "message": "refused"}})
            continue
        send({"id": m["id"], "result": [f for u in docs for f in functions(u) if p["query"] in f["name"]]})
    elif method == "textDocument/completion":
        names = [f["name"] for f in functions(p["textDocument"]["uri"])]
        send({"id": m["id"], "result": [{"label": x, "documentation": "doc " + str(p["position"]["line"])} for x in names]})
    elif method == "shutdown":
        send({"id": m["id"], "result": None})
    elif method == "exit":
        sys.exit(0)
`

// lspSymbol is what clients decode of a symbol.
type lspSymbol struct {
	Name     string
	Kind     int
	Location struct {
		URI   string
		Range struct{ Start, End struct{ Line, Character int } }
	}
}

// TestLSP goes through the calls on a language server.
func TestLSP(t *testing.T) {
	t.Parallel()
	i := newInside(t, toolbox.Options{}, sandpit.Spec{})
	if !strings.Contains(i.run("command -v python3 || true"), "python") {
		t.Skip("no python3")
	}
	dir := strings.TrimSpace(i.run("pwd"))
	// The server's own search begins with the PATH, where machines may have a server for Python.
	project := object{"languageId": "typescript", "pathToProject": "p"}
	with := func(more object) object {
		all := maps.Clone(project)
		maps.Copy(all, more)
		return all
	}
	document := with(object{"uri": "file://p/a b.py"})
	i.call(http.MethodPost, "/lsp/start", project).wantCode(http.StatusNotFound, "FILE_NOT_FOUND")
	i.upload([2]string{"p/a b.py", "x = 1\ndef one(): pass\n"}).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/lsp/start", project).wantCode(http.StatusNotImplemented, "NOT_IMPLEMENTED")
	i.call(http.MethodPost, "/lsp/start", object{"languageId": "cobol", "pathToProject": "p"}).wantCode(http.StatusBadRequest, "BAD_REQUEST")
	i.call(http.MethodPost, "/lsp/did-open", document).wantCode(http.StatusBadRequest, "LSP_SERVER_NOT_INITIALIZED")
	const program = "p/node_modules/.bin/typescript-language-server"
	i.upload([2]string{program, languageServer}).want(http.StatusOK, nil)
	i.run("chmod +x " + program)
	i.call(http.MethodPost, "/lsp/start", project).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/lsp/start", project).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/lsp/did-open", document).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/lsp/did-open", with(object{"uri": "file://p/none.py"})).wantCode(http.StatusNotFound, "FILE_NOT_FOUND")
	i.call(http.MethodPost, "/lsp/did-open", with(object{"uri": "http://x"})).wantCode(http.StatusBadRequest, "BAD_REQUEST")

	var symbols []lspSymbol
	query := []string{"languageId", "typescript", "pathToProject", "p", "uri", "file://" + dir + "/p/a b.py"}
	i.get("/lsp/document-symbols", query...).want(http.StatusOK, &symbols)
	if len(symbols) != 1 || symbols[0].Name != "one" || symbols[0].Kind != 12 || symbols[0].Location.Range.Start.Line != 1 ||
		symbols[0].Location.Range.End.Character != 7 || symbols[0].Location.URI != "file://"+dir+"/p/a%20b.py" {
		t.Errorf("%+v", symbols)
	}
	i.run("echo 'def two(): pass' >> 'p/a b.py'")
	i.call(http.MethodPost, "/lsp/did-open", document).want(http.StatusOK, nil)
	i.get("/lsp/workspacesymbols", append(query[:4:4], "query", "tw")...).want(http.StatusOK, &symbols)
	if len(symbols) != 1 || symbols[0].Name != "two" {
		t.Errorf("%+v", symbols)
	}
	i.get("/lsp/workspacesymbols", append(query[:4:4], "query", "refused")...).wantCode(http.StatusConflict, "CONFLICT")
	var list struct {
		IsIncomplete bool
		Items        []struct {
			Label         string
			Documentation map[string]any
		}
	}
	i.call(http.MethodPost, "/lsp/completions", with(object{"uri": "file://p/a b.py", "position": object{"line": 2, "character": 0}})).want(http.StatusOK, &list)
	if len(list.Items) != 2 || list.Items[1].Label != "two" || list.Items[1].Documentation["value"] != "doc 2" {
		t.Errorf("%+v", list)
	}
	i.call(http.MethodPost, "/lsp/did-close", document).want(http.StatusOK, nil)
	i.get("/lsp/document-symbols", query...).want(http.StatusOK, &symbols)
	if len(symbols) != 0 {
		t.Errorf("%+v", symbols)
	}
	i.call(http.MethodPost, "/lsp/stop", project).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/lsp/stop", project).wantCode(http.StatusBadRequest, "LSP_SERVER_NOT_INITIALIZED")
	if got := i.run("ps ax | grep -c '[.]bin/typescript' || true"); got != "0\n" {
		t.Errorf("%s processes remain", got)
	}

	i.call(http.MethodPost, "/lsp/start", project).want(http.StatusOK, nil)
	i.upload([2]string{"p/crash.py", "crash"}).want(http.StatusOK, nil)
	i.call(http.MethodPost, "/lsp/did-open", with(object{"uri": "file://p/crash.py"})).want(http.StatusOK, nil)
	got := i.get("/lsp/document-symbols", query...)
	if got.status != http.StatusServiceUnavailable && got.status != http.StatusBadRequest {
		t.Errorf("%d %s after a crash", got.status, got.body)
	}
	i.call(http.MethodPost, "/lsp/start", project).want(http.StatusOK, nil)
}
