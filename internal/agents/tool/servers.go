package tool

import (
	"context"
	"encoding/json"
	"maps"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/mcpclient"
)

// serverCallTimeout bounds a call of a server's tool.
const serverCallTimeout = 2 * time.Minute

// AddServer adds an MCP server to the session, or replaces one. It is started by ServerTools or the
// first call. Its secrets are masked in all later results. Errors are those of
// mcpclient.Servers.Add.
func (s *Session) AddServer(ctx context.Context, name string, server mcpclient.Server) error {
	if err := s.servers.Add(ctx, name, server); err != nil {
		return err
	}
	for _, value := range (mcpclient.Config{name: server}).Secrets() {
		s.secretSet().hide(value)
	}
	return nil
}

// RemoveServer ends and removes an MCP server. NotFound: no such server.
func (s *Session) RemoveServer(ctx context.Context, name string) error {
	return s.servers.Remove(ctx, name)
}

// ChangedServers returns the MCP servers that have announced other tools since ServerTools.
func (s *Session) ChangedServers() []string { return s.servers.Changed() }

// ServerTools starts an MCP server if necessary, and returns its tools, to be added to a registry,
// and how many were left out because of their names or sizes. Errors are those of
// mcpclient.Servers.Tools.
func (s *Session) ServerTools(ctx context.Context, server string) (tools []Added, omitted int, err error) {
	listing, err := s.servers.Tools(ctx, server)
	if err != nil {
		return nil, 0, err
	}
	for _, t := range listing.Tools {
		schema, description := offeredSchema(t.Schema, t.Description)
		tools = append(tools, Added{
			Name: t.Name, Title: t.Title, Category: MCP, Hints: Hints{Destructive: true, OpenWorld: true}, Timeout: serverCallTimeout + mcpTimeout,
			Description: s.secretSet().maskText(description), Schema: schema, Unchecked: true,
			Call: func(ctx context.Context, s *Session, input json.RawMessage) (Result, error) {
				var arguments map[string]any
				if err := json.Unmarshal(input, &arguments); err != nil {
					return Result{}, sandpit.Errorf(sandpit.Invalid, "%w", err)
				}
				return s.callServer(ctx, mcpExecuteInput{Server: server, Tool: t.Tool, Arguments: arguments, Timeout: serverCallTimeout.Seconds()})
			},
		})
	}
	return tools, listing.Omitted, nil
}

// WithServerTools returns a registry that also has tools of MCP servers, by the server's name, and at
// most limit tools in total. Omit is called for each tool that is left out, because its name is taken or
// because of the limit.
//
// Invalid: a schema.
func (r *Registry) WithServerTools(limit int, byServer map[string][]Added, omit func(server, name string)) (*Registry, error) {
	var added []Added
	taken := map[string]bool{}
	room := limit - len(r.Tools())
	for _, server := range slices.Sorted(maps.Keys(byServer)) {
		for _, t := range byServer[server] {
			if _, err := r.Tool(t.Name); err == nil || taken[t.Name] || len(added) >= room {
				omit(server, t.Name)
				continue
			}
			taken[t.Name] = true
			added = append(added, t)
		}
	}
	return r.With(added...)
}

// HideSecret masks a value in all later results.
func (s *Session) HideSecret(value string) { s.secretSet().hide(value) }

// SaveOutput writes the complete output of a tool to a file of the sandbox that version control
// ignores, and returns its path. Secrets are masked.
func (s *Session) SaveOutput(ctx context.Context, tool, text string) (string, error) {
	return s.saveOutput(ctx, tool, s.secretSet().maskText(text))
}
