package mcp

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

const (
	// listTimeout bounds starting the servers and listing their tools. Those of a slower server are
	// left out.
	listTimeout = 30 * time.Second
	// mostOffered limits the tools of a connection: models accept no more.
	mostOffered = 128
	// serverPrefix begins the names of servers' tools.
	serverPrefix = "mcp_"
	// toolExecute is the tool that calls tools of servers. A client that has it gets their own names, too.
	toolExecute = "mcp_execute"
)

// registry returns the tools that can be called.
func (c *connection) registry() *tool.Registry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.offered == nil {
		return c.Tools
	}
	return c.offered
}

// hasServers reports whether the connection offers tools of servers.
func (c *connection) hasServers() bool {
	_, err := c.Tools.Tool(toolExecute)
	return err == nil && len(c.Servers) > 0
}

// addServerTools adds the servers' tools to lists of tools, and calls them.
func (c *connection) addServerTools(next sdk.MethodHandler) sdk.MethodHandler {
	return func(ctx context.Context, method string, r sdk.Request) (sdk.Result, error) {
		if !c.hasServers() {
			return next(ctx, method, r)
		}
		switch r := r.(type) {
		case *sdk.ListToolsRequest:
			result, err := next(ctx, method, r)
			if list, ok := result.(*sdk.ListToolsResult); ok && err == nil && list.NextCursor == "" {
				list.Tools = slices.Concat(list.Tools, c.listServerTools(ctx, r.Extra))
			}
			return result, err
		case *sdk.CallToolRequest:
			if r.Params != nil && c.isServerTool(ctx, r) {
				return c.callTool(ctx, r)
			}
		}
		return next(ctx, method, r)
	}
}

// isServerTool reports whether a call is one of a server's tool. It lists the servers if no list was
// requested before.
func (c *connection) isServerTool(ctx context.Context, r *sdk.CallToolRequest) bool {
	name := r.Params.Name
	if _, err := c.Tools.Tool(name); err == nil || !strings.HasPrefix(name, serverPrefix) {
		return false
	}
	c.mu.Lock()
	listed := c.offered != nil
	c.mu.Unlock()
	if !listed {
		c.listServerTools(ctx, r.Extra)
	}
	_, err := c.registry().Tool(name)
	return err == nil
}

// listServerTools starts the servers in the sandbox, which is created if necessary, and returns their
// tools. A server that fails is left out and logged.
func (c *connection) listServerTools(ctx context.Context, extra *sdk.RequestExtra) []*sdk.Tool {
	ctx, cancel := context.WithTimeout(ctx, listTimeout)
	defer cancel()
	byServer, err := c.readServerTools(ctx, extra)
	if err != nil {
		c.serverLog().WarnContext(ctx, "mcp: list of the servers' tools failed", slog.Any("error", err))
		return nil
	}
	offered, err := c.Tools.WithServerTools(mostOffered, byServer, func(server, name string) {
		c.serverLog().WarnContext(ctx, "mcp: tool left out: its name is taken, or there are too many", slog.String("server", server), slog.String("tool", name))
	})
	if err != nil {
		c.serverLog().WarnContext(ctx, "mcp: invalid tool of a server", slog.Any("error", err))
		return nil
	}
	c.mu.Lock()
	c.offered = offered
	c.mu.Unlock()
	var list []*sdk.Tool
	for _, t := range offered.Tools()[len(c.Tools.Tools()):] {
		if schema, err := t.InputSchema(); err == nil { // With has checked it
			list = append(list, toProtocol(t, schema))
		}
	}
	return list
}

// readServerTools returns the tools of each server that responds.
func (c *connection) readServerTools(ctx context.Context, extra *sdk.RequestExtra) (map[string][]tool.Added, error) {
	v, end, err := c.beginSessionCall(ctx, extra)
	if err != nil {
		return nil, err
	}
	defer end()
	var mu sync.Mutex
	var group sync.WaitGroup
	byServer := map[string][]tool.Added{}
	for name := range maps.Keys(c.Servers) {
		group.Go(func() {
			tools, omitted, err := v.session.ServerTools(v.ctx, name)
			if err != nil || omitted > 0 {
				c.serverLog().WarnContext(ctx, "mcp: tools of a server left out", slog.String("server", name), slog.Int("omitted", omitted), slog.Any("error", err))
			}
			mu.Lock()
			defer mu.Unlock()
			byServer[name] = tools
		})
	}
	group.Wait()
	return byServer, nil
}

// serverLog returns the log of failures of servers.
func (c *connection) serverLog() *slog.Logger {
	if c.ServerLog == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.ServerLog
}
