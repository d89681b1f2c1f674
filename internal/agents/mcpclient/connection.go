package mcpclient

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"time"

	"github.com/modelcontextprotocol/go-sdk/jsonrpc"
	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
)

const (
	// connectTimeout bounds the start of a server, which npx may have to fetch first.
	connectTimeout = time.Minute
	// unblockTimeout is how long a canceled call may take to return. After that the server counts
	// as dead, because a server that does not read blocks the call.
	unblockTimeout = 2 * time.Second
	// maxMessage bounds one message of a server, in bytes.
	maxMessage = 8 << 20
	// closeTimeout bounds the orderly end of a session.
	closeTimeout = 2 * time.Second
)

// connection is a connection to a server.
type connection struct {
	session *sdk.ClientSession
	budget  *receiveBudget
	program *program    // nil for a server with a URL
	web     *httpClient // nil for a server that is a program
	release context.CancelFunc
	ended   chan struct{} // closed when the session has ended
}

// connectServer starts or connects to a server.
func connectServer(ctx context.Context, o Options, s Server) (*connection, error) {
	if s.Type != "" {
		return connectAs(ctx, o, s)
	}
	s.Type = HTTP
	c, err := connectAs(ctx, o, s)
	if err == nil || ctx.Err() != nil {
		return c, err
	}
	s.Type = SSE
	c, other := connectAs(ctx, o, s)
	if other != nil {
		return nil, fmt.Errorf("%w; and as of type sse: %w", err, other)
	}
	return c, nil
}

func connectAs(ctx context.Context, o Options, s Server) (*connection, error) {
	c := &connection{budget: &receiveBudget{}, ended: make(chan struct{})}
	c.budget.resetFor(memory.AccountOf(ctx))
	transport, err := c.newTransport(ctx, o, s)
	if err != nil {
		return nil, err
	}
	client := sdk.NewClient(&sdk.Implementation{Name: "sandpit", Version: o.Version}, &sdk.ClientOptions{
		Logger: slog.New(slog.DiscardHandler), Capabilities: &sdk.ClientCapabilities{},
		ToolListChangedHandler: func(context.Context, *sdk.ToolListChangedRequest) {
			if o.toolsChanged != nil {
				o.toolsChanged()
			}
		},
	})
	// A stream of events ends with the context of its request.
	life, release := context.WithCancel(context.WithoutCancel(ctx))
	c.release = release
	limited, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	err = c.runBounded(limited, func(context.Context) error {
		session, err := client.Connect(life, transport, nil)
		c.session = session
		return err
	})
	if err != nil {
		if limited.Err() != nil && ctx.Err() == nil {
			err = sandpit.Errorf(sandpit.Timeout, "the server was not ready within %s: %w", connectTimeout, err)
		}
		err = c.withProgramError(err)
		c.close(ctx)
		return nil, err
	}
	go func() {
		defer close(c.ended)
		_ = c.session.Wait() // the program's status is more specific
	}()
	return c, nil
}

func (c *connection) newTransport(ctx context.Context, o Options, s Server) (sdk.Transport, error) {
	if s.Type == Stdio {
		dir := s.Dir
		if dir == "" {
			dir = o.Dir
		}
		var where starter = o.Guest
		env := o.environment()
		if s.Host {
			where, env, dir, o.User = hostProcesses{}, hostEnvironment(), s.Dir, ""
		}
		maps.Copy(env, s.Env)
		var err error
		c.program, err = startProgram(ctx, where, sandpit.Command{Args: append([]string{s.Command}, s.Args...), Env: env, Dir: dir, User: o.User})
		if err != nil {
			return nil, err
		}
		return &sdk.IOTransport{Reader: c.budget.meterReader(c.program.output), Writer: c.program.input, MaxLineLength: maxMessage}, nil
	}
	var err error
	if c.web, err = newHTTPClient(o, s, c.budget); err != nil {
		return nil, err
	}
	if s.Type == SSE {
		return &sdk.SSEClientTransport{Endpoint: s.URL, HTTPClient: c.web.newClient(), MaxEventSize: maxMessage}, nil
	}
	// Notifications are not needed: clients list tools again from time to time.
	return &sdk.StreamableClientTransport{
		Endpoint: s.URL, HTTPClient: c.web.newClient(), MaxRetries: 1, DisableStandaloneSSE: true, MaxEventSize: maxMessage,
	}, nil
}

// runBounded calls f, and disconnects if f does not return soon after ctx has ended.
func (c *connection) runBounded(ctx context.Context, f func(context.Context) error) error {
	done := make(chan struct{})
	var err error
	go func() {
		defer close(done)
		err = f(ctx)
	}()
	select {
	case <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case <-done:
	case <-time.After(unblockTimeout):
		c.disconnect(ctx)
		<-done
	}
	return ctx.Err() // the result is too late
}

// runRequest calls f with the limits of one request, and adds the program's error to its error.
func (c *connection) runRequest(ctx context.Context, f func(context.Context) error) error {
	c.budget.resetFor(memory.AccountOf(ctx))
	return c.withProgramError(c.runBounded(ctx, f))
}

// disconnect breaks the connection, which unblocks running calls.
func (c *connection) disconnect(ctx context.Context) {
	c.release()
	if c.program != nil {
		c.program.stopProgram(ctx, 0)
	}
	if c.web != nil {
		c.web.close()
	}
}

// close ends the session and the server's program, by force after a timeout, and waits for them.
func (c *connection) close(ctx context.Context) {
	if c.session != nil {
		closing := make(chan struct{})
		go func() {
			defer close(closing)
			_ = c.session.Close() // the server has ended in any case
		}()
		select {
		case <-closing:
		case <-time.After(closeTimeout):
			c.disconnect(ctx)
			<-closing
		}
		<-c.ended
	}
	if c.program != nil {
		c.program.stopProgram(ctx, exitTimeout)
	}
	c.disconnect(ctx)
}

// exitWait bounds the time from the end of a program's output to its exit status.
const exitWait = time.Second

// withProgramError adds the program's status and standard error output to an error, if the program
// has ended.
func (c *connection) withProgramError(err error) error {
	_, answered := errors.AsType[*jsonrpc.Error](err)
	if err == nil || c.program == nil || answered || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return err
	}
	select {
	case <-c.program.ended:
	case <-time.After(exitWait):
		return err
	}
	if c.program.status == "" {
		return err
	}
	text := "its program has exited: " + c.program.status
	if said := strings.TrimSpace(strings.ToValidUTF8(c.program.stderr.String(), "?")); said != "" {
		text += "; its last output: " + said
	}
	return fmt.Errorf("%w (%s)", err, text)
}

// isAlive reports whether the connection is usable.
func (c *connection) isAlive() bool {
	select {
	case <-c.ended:
		return false
	default:
	}
	if c.program == nil {
		return true
	}
	select {
	case <-c.program.ended:
		return false
	default:
		return true
	}
}
