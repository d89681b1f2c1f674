package mcpclient

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
)

// Options configure Servers.
type Options struct {
	// Guest starts programs in the sandbox, as User, in the directory Dir.
	Guest     sandpit.Processes
	User, Dir string
	// Env returns the environment of programs, to which a server's own is added. Nil: empty.
	Env func() map[string]string
	// Version is the client version that servers see.
	Version string
	// Config are the servers.
	Config Config

	// toolsChanged is called when the connected server announces other tools. It may be nil.
	toolsChanged func()
	// listTimeout bounds the time for a list of tools. Default: a minute.
	listTimeout time.Duration
}

func (o Options) environment() map[string]string {
	env := map[string]string{}
	if o.Env != nil {
		maps.Copy(env, o.Env())
	}
	return env
}

// Servers are the servers of one session. All methods may be called concurrently.
type Servers struct {
	options Options

	mu     sync.Mutex
	byName map[string]*server
	closed bool
}

// server is one server and its connection.
type server struct {
	name   string
	config Server

	// changed is true when the server has announced other tools since they were last listed.
	changed  atomic.Bool
	starting chan struct{} // full while the server is started or ended
	mu       sync.Mutex    // guards the following
	conn     *connection
	closed   bool
}

// Info describes a server.
type Info struct {
	Name string `json:"name"`
	Type Type   `json:"type,omitempty"`
	// Running is true from the first call that needs it until it ends.
	Running bool `json:"running"`
}

// New returns servers without starting them. The caller must Close them.
func New(o Options) *Servers {
	s := &Servers{options: o, byName: map[string]*server{}}
	for name, config := range o.Config {
		s.byName[name] = newServer(name, config)
	}
	return s
}

func newServer(name string, config Server) *server {
	return &server{name: name, config: config, starting: make(chan struct{}, 1)}
}

// Add adds a server without starting it. It ends and replaces a server of the same name.
//
// Invalid: the name or the server. Exhausted: too many servers. Gone: the servers were closed.
func (s *Servers) Add(ctx context.Context, name string, config Server) error {
	config, err := Check(name, config)
	if err != nil {
		return err
	}
	s.mu.Lock()
	replaced := s.byName[name]
	switch {
	case s.closed:
		err = errClosed()
	case replaced == nil && len(s.byName) >= mostServers:
		err = sandpit.Errorf(sandpit.Exhausted, "quota exceeded: %d MCP servers, the maximum", mostServers)
	default:
		s.byName[name] = newServer(name, config)
	}
	s.mu.Unlock()
	if err == nil && replaced != nil {
		replaced.close(ctx)
	}
	return err
}

// Remove ends and removes a server. NotFound: no such server.
func (s *Servers) Remove(ctx context.Context, name string) error {
	s.mu.Lock()
	removed := s.byName[name]
	delete(s.byName, name)
	s.mu.Unlock()
	if removed == nil {
		return errNoServer(name)
	}
	removed.close(ctx)
	return nil
}

// Changed returns the servers that have announced other tools since their tools were last listed.
func (s *Servers) Changed() (names []string) {
	for _, v := range s.all() {
		if v.changed.Load() {
			names = append(names, v.name)
		}
	}
	return names
}

// all returns the servers by name.
func (s *Servers) all() (list []*server) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		list = append(list, s.byName[name])
	}
	return list
}

func errNoServer(name string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "MCP server %.100q not found", name), "list the servers with mcp_list_servers")
}

// List returns all servers by name.
func (s *Servers) List() []Info {
	list := []Info{}
	for _, v := range s.all() {
		v.mu.Lock()
		list = append(list, Info{Name: v.name, Type: v.config.Type, Running: v.conn != nil && v.conn.isAlive()})
		v.mu.Unlock()
	}
	return list
}

// Close ends all servers and waits for them. It is idempotent.
func (s *Servers) Close(ctx context.Context) {
	s.mu.Lock()
	s.closed = true
	s.mu.Unlock()
	var all sync.WaitGroup
	for _, v := range s.all() {
		all.Go(func() { v.close(ctx) })
	}
	all.Wait()
}

func (v *server) close(ctx context.Context) {
	v.mu.Lock()
	v.closed = true
	conn := v.conn
	v.conn = nil
	v.mu.Unlock()
	if conn != nil {
		conn.close(ctx)
	}
	v.starting <- struct{}{} // wait for a concurrent start, which then ends the server
	<-v.starting
}

// ensureConnected returns the connection to a server. It connects if necessary.
func (s *Servers) ensureConnected(ctx context.Context, name string) (*connection, error) {
	s.mu.Lock()
	v := s.byName[name]
	s.mu.Unlock()
	if v == nil {
		return nil, errNoServer(name)
	}
	select {
	case v.starting <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-v.starting }()
	v.mu.Lock()
	conn, closed := v.conn, v.closed
	v.mu.Unlock()
	switch {
	case closed:
		return nil, errClosed()
	case conn != nil && conn.isAlive():
		return conn, nil
	case conn != nil:
		conn.close(ctx) // it has ended
	}
	o := s.options
	o.toolsChanged = func() { v.changed.Store(true) }
	conn, err := connectServer(ctx, o, v.config)
	if err != nil {
		err = fmt.Errorf("MCP server %s: %w", name, err)
		if sandpit.CodeOf(err) == sandpit.Internal && ctx.Err() == nil {
			err = sandpit.Errorf(sandpit.Unavailable, "%w", err)
		}
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.conn = conn
	if v.closed && conn != nil {
		v.conn = nil
		conn.close(ctx)
		return nil, errClosed()
	}
	return conn, err
}

func errClosed() error { return sandpit.Errorf(sandpit.Gone, "the session has ended") }

const (
	mostTools      = 500
	mostPages      = 50
	maxDescription = 4000      // bytes
	maxSchema      = 32 << 10  // bytes
	maxListed      = 512 << 10 // bytes of descriptions and schemas together
	// defaultListTimeout is the default of Options.listTimeout.
	defaultListTimeout = time.Minute
)

// Listing is the list of a server's tools.
type Listing struct {
	Tools []Tool
	// Omitted is how many tools are left out, because of duplicate or invalid names or because
	// there are too many. More is true if the server has further pages.
	Omitted int
	More    bool
}

// Tools returns the tools of a server.
//
// NotFound: no such server. Unavailable, Timeout: it does not respond.
func (s *Servers) Tools(ctx context.Context, name string) (Listing, error) {
	conn, err := s.ensureConnected(ctx, name)
	if err != nil {
		return Listing{}, err
	}
	s.mu.Lock()
	if v := s.byName[name]; v != nil {
		v.changed.Store(false) // before the list, because tools may change while it is sent
	}
	s.mu.Unlock()
	l := toolList{server: name, taken: map[string]bool{}}
	limit := cmp.Or(s.options.listTimeout, defaultListTimeout)
	limited, cancel := context.WithTimeoutCause(ctx, limit, sandpit.Errorf(sandpit.Timeout, "it did not list its tools within %s", limit))
	defer cancel()
	err = conn.runRequest(limited, func(ctx context.Context) error { return l.listAll(ctx, conn.session) })
	if err != nil && limited.Err() != nil && ctx.Err() == nil {
		err = context.Cause(limited)
	}
	return l.Listing, serverError(name, err)
}

// listAll requests all pages, up to mostPages.
func (l *toolList) listAll(ctx context.Context, session *sdk.ClientSession) error {
	cursor := ""
	for range mostPages {
		page, err := session.ListTools(ctx, &sdk.ListToolsParams{Cursor: cursor})
		if err != nil {
			return err
		}
		for _, t := range page.Tools {
			l.addTool(t)
		}
		if page.NextCursor == "" {
			return nil
		}
		if cursor == page.NextCursor || len(l.Tools) == mostTools {
			break
		}
		cursor = page.NextCursor
	}
	l.More = true
	return nil
}

// Call calls a tool, by its name on the server or in Tools. The limit bounds the call, without the
// start of the server. An error of the tool is in the Answer.
//
// NotFound: no such server. Unavailable: it does not respond. context.DeadlineExceeded: the call
// takes longer than limit.
func (s *Servers) Call(ctx context.Context, server, tool string, arguments map[string]any, limit time.Duration) (Answer, error) {
	if strings.HasPrefix(tool, namePrefix(server)) {
		listing, err := s.Tools(ctx, server)
		if err != nil {
			return Answer{}, err
		}
		for _, t := range listing.Tools {
			if t.Name == tool {
				tool = t.Tool
			}
		}
	}
	conn, err := s.ensureConnected(ctx, server)
	if err != nil {
		return Answer{}, err
	}
	if arguments == nil {
		arguments = map[string]any{}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	var result *sdk.CallToolResult
	err = conn.runRequest(ctx, func(ctx context.Context) (err error) {
		result, err = conn.session.CallTool(ctx, &sdk.CallToolParams{Name: tool, Arguments: arguments})
		return err
	})
	if err != nil {
		return Answer{}, serverError(server, err)
	}
	return toAnswer(result), nil
}

// serverError adds the server's name to an error, and a code if it has none.
func serverError(server string, err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case sandpit.CodeOf(err) == sandpit.Internal:
		return sandpit.Errorf(sandpit.Unavailable, "MCP server %s: %w", server, err)
	}
	return fmt.Errorf("MCP server %s: %w", server, err)
}
