package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/agents/mcp"
	"github.com/sandpit-dev/sandpit/internal/agents/mcpclient"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

type mcpCommand struct {
	runCommand

	tools   []string
	servers string
	sandbox string
	session string
	// remove deletes the session's files at the end.
	remove bool
	idle   time.Duration
}

func newMCP(a *app) *cobra.Command {
	var o mcpCommand
	cmd := &cobra.Command{
		Use:   "mcp [flags] [IMAGE]",
		Short: "Give an agent a sandbox over the Model Context Protocol",
		Long: `Give an agent tools in a sandbox over the Model Context Protocol, on this program's
standard input and output: the agent's client starts it.

The sandbox is created with the first call of a tool and deleted when the client closes
the connection. It has no network without --network, and sees nothing of this machine
except IMAGE and -v. With a server (--server, SANDPIT_URL) it is created there.

With --sandbox several agents share a sandbox of a server. Each is a session with a user,
a directory and programs of its own, which the other sessions cannot access. Programs end
with the connection; files stay in the sandbox unless --remove-session is given.`,
		Example: `  claude mcp add sandpit -- sandpit mcp
  sandpit mcp --tools file,shell,git -v ./project:/workspace:rw
  sandpit mcp --network python:3.12-slim
  sandpit mcp --mcp-config mcp.json
  sandpit mcp --sandbox team --session alice`,
		Args: wantArgs(0, 1, "an image"),
		RunE: a.withoutClient(o.run),
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.tools, "tools", nil, "`tools` to offer: default, all, categories ("+strings.Join(categoryNames(), ", ")+") or names of tools (default server.mcp_tools of the configuration, else default)")
	f.StringVar(&o.servers, "mcp-config", "", "`file` of MCP servers whose tools can be called from the sandbox: {\"mcpServers\": {…}}")
	f.StringVar(&o.sandbox, "sandbox", "", "work in this `sandbox` of the server, beside other sessions")
	f.StringVar(&o.session, "session", "", "`name` of the session in the sandbox, to use its files again (default a new one)")
	f.BoolVar(&o.remove, "remove-session", false, "remove the session with its files when the connection ends")
	f.DurationVar(&o.idle, "idle", 30*time.Minute, "`time` without a call after which a server deletes the sandbox; the next call gets a new one")
	o.addSandboxFlags(f, "mcp", "; the user's home if the user cannot enter it")
	return cmd
}

func (o *mcpCommand) run(cmd *cobra.Command, a *app, args []string) error {
	o.networkSet = cmd.Flags().Changed("network")
	if len(args) == 1 {
		o.image = args[0]
	}
	return o.serveTools(cmd.Context(), a)
}

func categoryNames() []string {
	var names []string
	for _, c := range tool.Categories() {
		names = append(names, string(c))
	}
	return names
}

func (o *mcpCommand) serveTools(ctx context.Context, a *app) (err error) {
	cfg, err := a.loadConfig(slices.Concat(o.toOverrides(), a.serverOverride())...)
	if err != nil {
		return err
	}
	tools, err := o.chooseTools(cfg)
	if err != nil {
		return err
	}
	serve := mcp.Options{Tools: tools.Audited(newCallLog(a, cfg, "mcp").record).WithCommandTimeout(cfg.CommandTimeout(0)), Version: daemon.ReadVersions().Sandpit}
	if serve.Servers, err = readServers(o.servers); err != nil {
		return err
	}
	if o.session != "" && o.sandbox == "" {
		return sandpit.Errorf(sandpit.Invalid, "--session needs a shared sandbox: name one with --sandbox")
	}
	if o.remove && o.sandbox == "" {
		return sandpit.Errorf(sandpit.Invalid, "--remove-session needs a shared sandbox: name one with --sandbox")
	}
	if there, ok := o.chooseServer(cfg); ok || o.sandbox != "" {
		return o.serveRemote(ctx, a, there, serve)
	}
	spec, err := o.toSpec(a, cfg)
	if err != nil {
		return err
	}
	logger := slog.New(slog.NewTextHandler(a.Err, nil))
	for _, text := range cfg.Notices {
		logger.WarnContext(ctx, "configuration", slog.String("notice", text))
	}
	local, err := daemon.OpenLocal(ctx, cfg, daemon.Listeners{
		Notice: a.newNoticeOnce(cfg), Admit: daemon.Admission(cfg, logger), ConfineFiles: cfg.Sandbox.ConfineFiles,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, local.Close()) }()
	serve.Open = func(ctx context.Context) (mcp.Place, error) {
		box, err := local.Create(ctx, spec)
		if err != nil {
			return mcp.Place{}, err
		}
		place := mcp.Place{Guest: box.Guest(), ID: "local", User: spec.User, Close: box.Destroy}
		if err := o.rules.giveSecrets(ctx, a, box); err != nil {
			return place, errors.Join(err, box.Destroy(context.WithoutCancel(ctx)))
		}
		return place, nil
	}
	return mcp.Serve(ctx, serve, io.NopCloser(a.In), nopWriteCloser{a.Out})
}

// chooseTools returns the tools that the client sees. Those for other MCP servers are included by
// default when such servers are configured.
func (o mcpCommand) chooseTools(cfg config.Config) (*tool.Registry, error) {
	words := o.tools
	if len(words) == 0 {
		words = cfg.Server.MCPTools
	}
	if len(words) == 0 && o.servers != "" {
		words = []string{tool.ChooseDefault, string(tool.MCP)}
	}
	return tool.Choose(nil, words...)
}

// readServers reads the list of MCP servers in a file; "" means no servers.
func readServers(name string) (mcpclient.Config, error) {
	if name == "" {
		return nil, nil
	}
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	servers, err := mcpclient.Parse(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return servers, nil
}

// serveRemote serves tools in a sandbox that a server creates. If this program is killed, the
// server deletes the sandbox when it is idle.
func (o *mcpCommand) serveRemote(ctx context.Context, a *app, cfg config.Config, serve mcp.Options) error {
	spec, err := o.toRemoteSpec(a, cfg)
	if err != nil {
		return err
	}
	secrets, err := o.rules.readSecrets(a)
	if err != nil {
		return err
	}
	c, err := newConfiguredClient(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	if o.sandbox != "" {
		return o.serveShared(ctx, a, c, serve)
	}
	serve.Open = func(ctx context.Context) (mcp.Place, error) {
		s, err := c.Sandboxes.Create(ctx, client.CreateRequest{
			Spec: spec, Secrets: secrets.programs, NetworkSecrets: secrets.network, Provider: chosenProvider(cfg, o.provider), Offline: o.networkSet && !o.network,
			Policy: sandpit.Policy{IdleTimeout: o.idle, IdleAction: sandpit.ActionKill},
		})
		if err != nil {
			return mcp.Place{}, err
		}
		place := newRemoteSandbox(c, s)
		return mcp.Place{Hold: place.holdSandbox, ID: s.ID, User: s.Spec.User, Close: s.Delete, Preview: previewURLs(c, s.ID)}, nil
	}
	return mcp.Serve(ctx, serve, io.NopCloser(a.In), nopWriteCloser{a.Out})
}

// remoteSandbox is a sandbox of a server that calls of tools resume or start when they need it.
type remoteSandbox struct {
	client *client.Client
	id     sandpit.ID

	mu    sync.Mutex
	guest sandpit.Guest
}

func newRemoteSandbox(c *client.Client, s *client.Sandbox) *remoteSandbox {
	return &remoteSandbox{client: c, id: s.ID, guest: s.Guest()}
}

// remoteCall is a sandbox during a call.
type remoteCall struct {
	ctx     context.Context //nolint:containedctx // that of the call
	guest   sandpit.Guest
	release func()
}

func (r remoteCall) Context() context.Context { return r.ctx }
func (r remoteCall) Guest() sandpit.Guest     { return r.guest }
func (r remoteCall) Release() {
	if r.release != nil {
		r.release()
	}
}

// holdSandbox resumes the sandbox if it is paused and starts it if it is stopped. A started
// sandbox gets a new guest: its earlier processes have ended.
func (p *remoteSandbox) holdSandbox(ctx context.Context) (mcp.Held, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	started, err := ensureRunning(ctx, p.client, p.id)
	if err != nil {
		return nil, err
	}
	if started {
		p.guest = p.client.Sandboxes.Open(p.id).Guest()
	}
	return remoteCall{ctx: ctx, guest: p.guest}, nil
}

// ensureRunning resumes or starts a server's sandbox, and reports whether it was started.
func ensureRunning(ctx context.Context, c *client.Client, id sandpit.ID) (started bool, err error) {
	s, err := c.Sandboxes.Get(ctx, id)
	if err != nil {
		return false, err
	}
	switch s.State {
	case sandpit.StatePaused, sandpit.StatePausing:
		err = c.Sandboxes.Resume(ctx, id)
	case sandpit.StateStopped, sandpit.StateStopping:
		started, err = true, c.Sandboxes.Start(ctx, id)
	default: // it runs, or the call returns why it cannot
	}
	if sandpit.CodeOf(err) != sandpit.Conflict {
		return started, err
	}
	if now, e := c.Sandboxes.Get(ctx, id); e == nil && now.State == sandpit.StateRunning { // another client started it
		return started, nil
	}
	return false, err
}

// holdSession returns a function that holds a session in a shared sandbox during a call.
func holdSession(sessions *tool.Sessions, p *remoteSandbox, id string) func(context.Context) (mcp.Held, error) {
	return func(ctx context.Context) (mcp.Held, error) {
		held, err := p.holdSandbox(ctx)
		if err != nil {
			return nil, err
		}
		release, err := sessions.Hold(ctx, id)
		if err != nil {
			return nil, err
		}
		return remoteCall{ctx: ctx, guest: held.Guest(), release: sync.OnceFunc(release)}, nil
	}
}

// previewURLs returns a function that returns a link to a port.
func previewURLs(c *client.Client, id sandpit.ID) func(context.Context, int) (tool.Page, error) {
	return func(ctx context.Context, port int) (tool.Page, error) {
		t, err := c.Ports.Ticket(ctx, id, port, tool.PageLife, 0)
		if err != nil {
			return tool.Page{}, err
		}
		return tool.NewPage(port, cmp.Or(t.URL, t.PathURL), t.ExpiresAt)
	}
}

// sessionsEnd bounds the time to end a session in a shared sandbox.
const sessionsEnd = 30 * time.Second

// serveShared serves tools in an existing sandbox, as one of several sessions.
func (o *mcpCommand) serveShared(ctx context.Context, a *app, c *client.Client, serve mcp.Options) error {
	id, err := (&finder{client: c}).findID(ctx, o.sandbox)
	if err != nil {
		return err
	}
	box, err := c.Sandboxes.Get(ctx, id)
	if err != nil {
		return err
	}
	sessions := tool.NewSessions(tool.SessionsOptions{
		Servers: serve.Servers,
		Open: func(context.Context, string) (tool.Box, error) {
			return tool.Box{Guest: box.Guest(), Close: func(context.Context) error { return nil }}, nil
		},
	})
	serve.Shared = true
	remote := newRemoteSandbox(c, box)
	serve.Open = func(ctx context.Context) (mcp.Place, error) {
		if _, err := remote.holdSandbox(ctx); err != nil {
			return mcp.Place{}, err
		}
		info, err := sessions.Create(ctx, tool.SessionRequest{ID: o.session, Shared: string(id)})
		if err != nil {
			return mcp.Place{}, err
		}
		place := mcp.Place{ID: id, Hold: holdSession(sessions, remote, info.ID), Close: func(ctx context.Context) error { return sessions.Cleanup(ctx, info.ID, o.remove) }}
		err = sessions.Use(info.ID, func(s *tool.Session) error {
			place.Session = s
			return nil
		})
		return place, err
	}
	err = mcp.Serve(ctx, serve, io.NopCloser(a.In), nopWriteCloser{a.Out})
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sessionsEnd)
	defer cancel()
	return errors.Join(err, sessions.Close(ctx))
}

// nopWriteCloser is a writer whose Close does nothing: the stream belongs to the caller.
type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }
