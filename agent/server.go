package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/agents/mcpclient"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// MCPServer is a server of the Model Context Protocol: a program that runs in the sandbox, or a URL
// that is contacted from it, as far as its network policy allows.
type MCPServer struct {
	// Type is stdio, http (streamable HTTP) or sse. Default: stdio for a command; for a URL, http
	// and then sse are tried.
	Type string `json:"type,omitempty"`
	// Command is the program, with Args, Env and the directory Dir.
	Command string            `json:"command,omitempty"`
	Args    []string          `json:"args,omitempty"`
	Env     map[string]string `json:"env,omitempty"`
	Dir     string            `json:"cwd,omitempty"`
	// URL is an http or https URL. Headers are sent only to it.
	URL     string            `json:"url,omitempty"`
	Headers map[string]string `json:"headers,omitempty"`
	// OnHost is true for a server outside of the sandbox: a program on this machine with the rights
	// of this process, or a URL that is contacted from here. Its tools act outside of the sandbox as
	// the model asks them to. Default: the server is in the sandbox.
	OnHost bool `json:"-"`
}

// ParseMCPServers parses a configuration in the common form of MCP clients:
// {"mcpServers": {"NAME": {"command": "…", "args": ["…"], "env": {}}}}. Invalid: it has an error.
func ParseMCPServers(data []byte) (map[string]MCPServer, error) {
	parsed, err := mcpclient.Parse(data)
	if err != nil {
		return nil, err
	}
	servers := make(map[string]MCPServer, len(parsed))
	for name, s := range parsed {
		servers[name] = MCPServer{Type: string(s.Type), Command: s.Command, Args: s.Args, Env: s.Env, Dir: s.Dir, URL: s.URL, Headers: s.Headers}
	}
	return servers, nil
}

func (s MCPServer) toConfig() mcpclient.Server {
	return mcpclient.Server{Type: mcpclient.Type(s.Type), Command: s.Command, Args: s.Args, Env: s.Env, Dir: s.Dir, URL: s.URL, Headers: s.Headers, Host: s.OnHost}
}

// serverSet is the MCP servers of an agent.
type serverSet struct {
	mu      sync.Mutex
	configs map[string]mcpclient.Server
	// session is the session that has the servers of added, also those that were replaced or
	// disconnected since the last refresh. tools are those of the others.
	session *tool.Session
	added   map[string]bool
	tools   map[string][]tool.Added
	changed bool // servers were connected or disconnected since the last refresh
	// omitted is the last notice about tools of each server that are left out.
	omitted map[string]string
}

func newServerSet(servers map[string]MCPServer) (*serverSet, error) {
	s := &serverSet{configs: map[string]mcpclient.Server{}, added: map[string]bool{}, tools: map[string][]tool.Added{}, omitted: map[string]string{}}
	for name, server := range servers {
		config, err := mcpclient.Check(name, server.toConfig())
		if err != nil {
			return nil, err
		}
		s.configs[name] = config
	}
	return s, nil
}

// ConnectServer adds an MCP server, or replaces the one of that name. The model gets its tools with
// the next request. Invalid: the name or the server.
func (a *Agent) ConnectServer(name string, server MCPServer) error {
	config, err := mcpclient.Check(name, server.toConfig())
	if err != nil {
		return err
	}
	a.servers.mu.Lock()
	defer a.servers.mu.Unlock()
	a.masks.add(mcpclient.Config{name: config}.Secrets()...)
	a.servers.configs[name] = config
	delete(a.servers.tools, name)
	a.servers.changed = true
	return nil
}

// DisconnectServer removes an MCP server, or all of them for the name "". The model loses its tools
// with the next request. NotFound: no such server.
func (a *Agent) DisconnectServer(name string) error {
	a.servers.mu.Lock()
	defer a.servers.mu.Unlock()
	if _, known := a.servers.configs[name]; !known && name != "" {
		return sandpit.Errorf(sandpit.NotFound, "MCP server %.100q not found", name)
	}
	for other := range a.servers.configs {
		if name == "" || other == name {
			delete(a.servers.configs, other)
		}
	}
	a.servers.changed = true
	return nil
}

// ConnectedServers returns the URL or the command of each MCP server by its name.
func (a *Agent) ConnectedServers() map[string]string {
	a.servers.mu.Lock()
	defer a.servers.mu.Unlock()
	connected := map[string]string{}
	for name, s := range a.servers.configs {
		if connected[name] = s.URL; s.URL == "" {
			connected[name] = strings.Join(append([]string{s.Command}, s.Args...), " ")
		}
	}
	return connected
}

// refreshInterval is the number of steps after which the tools of all servers are listed again.
const refreshInterval = 5

// refreshTools connects servers if necessary, lists the tools of those that may have changed, and
// offers them to the model. An error is one of the sandbox: failures of servers are notices.
func (a *Agent) refreshTools(ctx context.Context) error {
	set := a.servers
	set.mu.Lock()
	empty := len(set.configs) == 0 && !set.changed
	set.mu.Unlock()
	if empty {
		return nil
	}
	session, err := a.enterForServers(ctx)
	if session == nil {
		return err
	}
	if set.update(ctx, session, a.step.Load()%refreshInterval == 1, a.notify) {
		return a.offerTools()
	}
	return nil
}

// enterForServers returns the session, of a new sandbox if the earlier one has ended. It returns none if the
// sandbox does not respond, which the model learns from the results of its next calls.
func (a *Agent) enterForServers(ctx context.Context) (*tool.Session, error) {
	session, err := a.place.enter(ctx)
	if errors.Is(err, errLost) {
		a.place.noteLost()
		session, err = a.place.enter(ctx)
	}
	if open := (errOpen{}); err == nil || ctx.Err() != nil || a.place.isClosed() || errors.As(err, &open) {
		return session, err
	}
	a.notify("the MCP servers are not reached: " + err.Error())
	return nil, nil //nolint:nilnil // no session
}

// update makes the session's servers those of the set. It reports whether tools may have changed.
func (s *serverSet) update(ctx context.Context, session *tool.Session, all bool, notify func(string)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	changed := s.changed
	s.changed = false
	if s.session != session {
		s.session, s.added, s.tools, changed = session, map[string]bool{}, map[string][]tool.Added{}, true
	}
	for name := range s.added {
		if _, wanted := s.configs[name]; !wanted {
			delete(s.added, name)
			delete(s.tools, name)
			_ = session.RemoveServer(ctx, name) // NotFound: it could not be added
		}
	}
	announced := session.ChangedServers()
	var wg sync.WaitGroup
	var mu sync.Mutex
	for name, config := range s.configs {
		before, known := s.tools[name]
		if known && !all && !slices.Contains(announced, name) {
			continue
		}
		changed, s.added[name] = true, true
		wg.Go(func() {
			tools, err := listServer(ctx, session, name, config, known)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				notify(fmt.Sprintf("MCP server %s is left out: %v", name, err))
			}
			notifyChanges(notify, name, before, tools, known)
			s.tools[name] = tools
		})
	}
	wg.Wait()
	return changed
}

// listServer returns the tools of a server, which it adds to the session unless it is known.
func listServer(ctx context.Context, session *tool.Session, name string, config mcpclient.Server, known bool) ([]tool.Added, error) {
	if !known {
		if err := session.AddServer(ctx, name, config); err != nil {
			return nil, err
		}
	}
	tools, omitted, err := session.ServerTools(ctx, name)
	if err == nil && omitted > 0 {
		err = fmt.Errorf("in part: %d tools have invalid names or are too large", omitted)
	}
	return tools, err
}

// notifyChanges reports tools that a known server has added and removed.
func notifyChanges(notify func(string), server string, before, after []tool.Added, known bool) {
	if !known {
		return
	}
	names := func(list []tool.Added) map[string]bool {
		m := map[string]bool{}
		for _, t := range list {
			m[t.Name] = true
		}
		return m
	}
	had, has := names(before), names(after)
	for _, name := range slices.Sorted(maps.Keys(has)) {
		if !had[name] {
			notify(fmt.Sprintf("MCP server %s has a new tool: %s", server, name))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(had)) {
		if !has[name] {
			notify(fmt.Sprintf("MCP server %s has removed a tool: %s", server, name))
		}
	}
}

// mostNamed limits the names of tools in a notice.
const mostNamed = 10

// notifyOmitted reports tools that are left out, by server, unless that was reported before.
func (a *Agent) notifyOmitted(omitted map[string][]string) {
	set := a.servers
	set.mu.Lock()
	defer set.mu.Unlock()
	for server := range set.omitted {
		if len(omitted[server]) == 0 {
			delete(set.omitted, server)
		}
	}
	for _, server := range slices.Sorted(maps.Keys(omitted)) {
		names := omitted[server]
		text := fmt.Sprintf("%d tools of MCP server %s are left out, because their names are taken or there are more than %d tools: %s",
			len(names), server, mostOffered, strings.Join(names[:min(len(names), mostNamed)], ", "))
		if len(names) > mostNamed {
			text += ", …"
		}
		if set.omitted[server] != text {
			set.omitted[server] = text
			a.notify(text)
		}
	}
}

// offerTools offers the agent's own tools and those of the servers. Tools whose name is taken, and
// those beyond the limit, are left out with a notice.
func (a *Agent) offerTools() error {
	a.servers.mu.Lock()
	byServer := maps.Clone(a.servers.tools)
	a.servers.mu.Unlock()
	omitted := map[string][]string{}
	registry, err := a.own.WithServerTools(mostOffered, byServer, func(server, name string) { omitted[server] = append(omitted[server], name) })
	if err != nil {
		return err
	}
	a.notifyOmitted(omitted)
	a.tools, err = newToolSet(registry)
	return err
}
