package mcp

import (
	"context"
	"strings"
	"testing"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// TestNames calls tools by names that are not in the list. The place refuses, which shows
// that a tool was found.
func TestNames(t *testing.T) {
	t.Parallel()
	tools, err := tool.Choose(nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, shared := range map[string]bool{"alone": false, "shared": true} {
		c := &connection{Options: Options{Tools: tools, Shared: shared, Open: func(context.Context) (Place, error) {
			return Place{}, sandpit.Errorf(sandpit.Unavailable, "no sandbox here")
		}}}
		here, there := sdk.NewInMemoryTransports()
		server, err := c.newServer("").Connect(t.Context(), here, nil)
		if err != nil {
			t.Fatal(err)
		}
		client, err := sdk.NewClient(&sdk.Implementation{Name: "test", Version: "1"}, nil).Connect(t.Context(), there, nil)
		if err != nil {
			t.Fatal(err)
		}
		if about := client.InitializeResult().Instructions; strings.Contains(about, "belongs to this connection alone") == shared {
			t.Errorf("%s: %s", name, about)
		}
		for called, want := range map[string]string{
			"python_exec": "no sandbox here", "python_execute": "no sandbox here", "browser_navigate": "no sandbox here",
			"file_download": "--tools default,file_download", "get_workspace_state": "--tools default,workspace_state",
		} {
			r, err := client.CallTool(t.Context(), &sdk.CallToolParams{Name: called, Arguments: map[string]any{}})
			if err != nil {
				t.Errorf("%s, %s: %v", name, called, err)
				continue
			}
			if text, ok := r.Content[0].(*sdk.TextContent); !ok || !r.IsError || !strings.Contains(text.Text, want) {
				t.Errorf("%s, %s: %+v, want %q", name, called, r.Content[0], want)
			}
		}
		if _, err := client.CallTool(t.Context(), &sdk.CallToolParams{Name: "no_such_tool"}); err == nil {
			t.Errorf("%s: a tool that does not exist is called", name)
		}
		if err := client.Close(); err != nil {
			t.Error(err)
		}
		_ = server.Wait() // how the client goes is its own business
	}
}
