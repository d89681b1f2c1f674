package tool_test

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/mcpclient"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// TestWith adds tools to a registry, which need no sandbox.
func TestWith(t *testing.T) {
	t.Parallel()
	base, err := tool.Choose(nil, "file_read")
	if err != nil {
		t.Fatal(err)
	}
	repeat := tool.Added{
		Name: "repeat", Description: "x", NoSandbox: true, Schema: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string","default":"usual"}}}`),
		Call: func(_ context.Context, _ *tool.Session, input json.RawMessage) (tool.Result, error) {
			if strings.Contains(string(input), "fail") {
				return tool.Result{}, errors.New("failed")
			}
			return tool.Result{Text: string(input)}, nil
		},
	}
	inside := tool.Added{Name: "inside", Call: repeat.Call}
	lax := tool.Added{Name: "lax", NoSandbox: true, Unchecked: true, Schema: json.RawMessage(`{"type":"nonsense","$ref":"http://elsewhere"}`), Call: repeat.Call}
	more, err := base.With(repeat, inside, lax)
	if err != nil {
		t.Fatal(err)
	}
	for input, want := range map[string]string{
		"":                `{"text":"usual"}`,
		`{"text":"a"}`:    `{"text":"a"}`,
		`{"text":1}`:      "ERROR: invalid input: ",
		`{"text":"fail"}`: "ERROR: failed",
		"{":               "ERROR: the input is not a JSON object",
	} {
		if r := more.Invoke(t.Context(), nil, "repeat", []byte(input)); !strings.HasPrefix(r.Text, want) {
			t.Errorf("%s: %q, want %q", input, r.Text, want)
		}
	}
	if r := more.Invoke(t.Context(), nil, "inside", nil); r.Text != "ERROR: tool inside: the session is missing" {
		t.Errorf("without a session: %q", r.Text)
	}
	if r := more.Invoke(t.Context(), nil, "lax", []byte(`{"any":[1]}`)); r.Text != `{"any":[1]}` {
		t.Errorf("unchecked: %q", r.Text)
	}
	if _, err := base.Tool("repeat"); sandpit.CodeOf(err) != sandpit.NotFound || len(more.Tools()) != len(base.Tools())+3 {
		t.Errorf("the base has the tool, too: %v", err)
	}
	shown, err := more.Tool("lax")
	if schema, e := shown.InputSchema(); err != nil || e != nil || string(schema) != string(lax.Schema) || shown.NeedsSandbox() {
		t.Errorf("%s, %v, %v", schema, err, e)
	}
	for want, bad := range map[sandpit.Code]tool.Added{
		sandpit.AlreadyExists: {Name: "file_read", Call: repeat.Call},
		sandpit.Invalid:       {Name: "bad", Schema: json.RawMessage(`[1]`), Call: repeat.Call},
	} {
		if _, err := more.With(bad); sandpit.CodeOf(err) != want {
			t.Errorf("%s: %v, want %s", bad.Name, err, want)
		}
	}
}

// testServersAtRunTime connects and disconnects MCP servers of a session.
func testServersAtRunTime(t *testing.T, box sandpit.Instance) {
	t.Helper()
	k := withServers(t, box, "runtime", `{"mcpServers": {}}`)
	ctx := t.Context()
	servers, err := mcpclient.Parse([]byte(`{"mcpServers": {"test": {"command": "/opt/server", "env": {"API_KEY": "sk-very-secret"}}}}`))
	if err != nil {
		t.Fatal(err)
	}
	if err := k.session.AddServer(ctx, "test", servers["test"]); err != nil {
		t.Fatal(err)
	}
	tools, omitted, err := k.session.ServerTools(ctx, "test")
	if err != nil || omitted != 0 || len(tools) < 3 {
		t.Fatalf("%d tools, %d omitted, %v", len(tools), omitted, err)
	}
	registry, err := tool.Choose(nil, "mcp")
	if err == nil {
		registry, err = registry.With(tools...)
	}
	if err != nil {
		t.Fatal(err)
	}
	if r := registry.Invoke(ctx, k.session, "mcp_test_environment", nil); strings.Contains(r.Text, "very-secret") || r.Problem != nil {
		t.Errorf("%+v", r)
	}
	// The server announces other tools.
	if r := registry.Invoke(ctx, k.session, "mcp_test_change", nil); r.Problem != nil {
		t.Fatalf("%+v", r)
	}
	for limit := time.Now().Add(10 * time.Second); len(k.session.ChangedServers()) != 1; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatal("the announcement of the server has no effect")
		}
	}
	if changed, _, err := k.session.ServerTools(ctx, "test"); err != nil || len(changed) == len(tools) || len(k.session.ChangedServers()) > 0 {
		t.Errorf("%d tools after the change, %v", len(changed), err)
	}
	if err := k.session.RemoveServer(ctx, "test"); err != nil {
		t.Fatal(err)
	}
	if r := registry.Invoke(ctx, k.session, "mcp_test_environment", nil); r.Problem == nil || r.Problem.Code != sandpit.NotFound {
		t.Errorf("after its removal: %+v", r)
	}
	if err := k.session.RemoveServer(ctx, "test"); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("removed twice: %v", err)
	}
	if err := k.session.AddServer(ctx, "bad\nname", servers["test"]); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("a bad name: %v", err)
	}
}
