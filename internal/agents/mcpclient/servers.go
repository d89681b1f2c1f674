package mcpclient

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
)

// Options are what Servers need.
type Options struct {
	// Guest starts what is needed in the sandbox, as User, in the directory Dir.
	Guest     sandpit.Processes
	User, Dir string
	// Env is what programs find in their environment, besides what their server is given.
	// Nil: nothing.
	Env func() map[string]string
	// Version is told to servers.
	Version string
	// Config are the servers.
	Config Config
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
	byName  map[string]*server
}

// server is one of them.
type server struct {
	name   string
	config Server

	starting chan struct{} // holds one while it is started or ended
	mu       sync.Mutex    // guards the following
	conn     *connection
	closed   bool
}

// Info describes a server.
type Info struct {
	Name string `json:"name"`
	Type Type   `json:"type,omitempty"`
	// Running is true once it was needed and until it ends.
	Running bool `json:"running"`
}

// New returns servers of which none runs yet. The caller must Close them.
func New(o Options) *Servers {
	s := &Servers{options: o, byName: map[string]*server{}}
	for name, config := range o.Config {
		s.byName[name] = &server{name: name, config: config, starting: make(chan struct{}, 1)}
	}
	return s
}

// List returns all servers in the order of their names.
func (s *Servers) List() []Info {
	list := []Info{}
	for _, name := range slices.Sorted(maps.Keys(s.byName)) {
		v := s.byName[name]
		v.mu.Lock()
		list = append(list, Info{Name: name, Type: v.config.Type, Running: v.conn != nil && v.conn.isAlive()})
		v.mu.Unlock()
	}
	return list
}

// Close ends all servers and waits for their ends. It is idempotent.
func (s *Servers) Close(ctx context.Context) {
	var all sync.WaitGroup
	for _, v := range s.byName {
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
	v.starting <- struct{}{} // whoever starts it just now ends it again
	<-v.starting
}

// ensureConnected returns the connection to a server, which is made if there is none.
func (s *Servers) ensureConnected(ctx context.Context, name string) (*connection, error) {
	v := s.byName[name]
	if v == nil {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "there is no MCP server %.100q", name), "mcp_list_servers tells which there are")
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
		conn.close(ctx) // it has died
	}
	conn, err := connectServer(ctx, s.options, v.config)
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
)

// Listing is what a server offers.
type Listing struct {
	Tools []Tool
	// Omitted is how many tools are left out, since their names are taken or cannot be, or
	// there are too many. More is true if the server had not named all.
	Omitted int
	More    bool
}

// Tools asks a server for its tools. NotFound, Unavailable, Timeout.
func (s *Servers) Tools(ctx context.Context, name string) (Listing, error) {
	conn, err := s.ensureConnected(ctx, name)
	if err != nil {
		return Listing{}, err
	}
	l := toolList{server: name, taken: map[string]bool{}}
	err = conn.runRequest(ctx, func(ctx context.Context) error { return l.listAll(ctx, conn.session) })
	return l.Listing, serverError(name, err)
}

// listAll asks for one page after the other.
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

// Call calls a tool, which is named as its server does or as Tools does, and gives a server
// that runs the limit's time to answer. NotFound, Unavailable; context.DeadlineExceeded if
// it takes longer. A tool that fails is no error.
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

// serverError gives an error of a server its name and, if it has none, a code.
func serverError(server string, err error) error {
	switch {
	case err == nil, errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case sandpit.CodeOf(err) == sandpit.Internal:
		return sandpit.Errorf(sandpit.Unavailable, "MCP server %s: %w", server, err)
	}
	return fmt.Errorf("MCP server %s: %w", server, err)
}
