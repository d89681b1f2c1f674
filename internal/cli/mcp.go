package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/daemon"
	"github.com/sandpit-dev/sandpit/internal/mcp"
	"github.com/sandpit-dev/sandpit/internal/mcpclient"
	"github.com/sandpit-dev/sandpit/internal/tool"
)

type mcpOptions struct {
	runOptions

	tools   []string
	servers string
	sandbox string
	session string
	idle    time.Duration
}

func (a *app) newMCP() *cobra.Command {
	var o mcpOptions
	cmd := &cobra.Command{
		Use:   "mcp [flags] [IMAGE]",
		Short: "Give an agent a sandbox over the Model Context Protocol",
		Long: `Give an agent tools in a sandbox over the Model Context Protocol, by this
program's input and output: the client starts it.

The sandbox is made with the first call of a tool and removed when the client
closes the connection. It has no network unless --network gives it one, and sees
nothing of this machine but what IMAGE and -v bring in. With a server (--server,
SANDPIT_URL) it is made there.

With --sandbox several agents share a sandbox of a server's. Each is a session with
a user, a directory and programs of its own, which the others cannot get at. What
runs ends with the connection; the files stay in the sandbox.`,
		Example: `  claude mcp add sandpit -- sandpit mcp
  sandpit mcp --tools file,shell,git -v ./project:/workspace
  sandpit mcp --network python:3.12-slim
  sandpit mcp --mcp-config mcp.json
  sandpit mcp --sandbox team --session alice`,
		Args: wantArgs(0, 1, "an image"),
		RunE: func(cmd *cobra.Command, args []string) error {
			o.networkSet = cmd.Flags().Changed("network")
			if len(args) == 1 {
				o.image = args[0]
			}
			return a.serveMCP(cmd.Context(), o)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.tools, "tools", nil, "offer the tools of these `categories` only: "+strings.Join(categoryNames(), ", "))
	f.StringVar(&o.servers, "mcp-config", "", "`file` of MCP servers whose tools can be called from the sandbox: {\"mcpServers\": {…}}")
	f.StringVar(&o.sandbox, "sandbox", "", "work in this `sandbox` of the server's, beside other sessions")
	f.StringVar(&o.session, "session", "", "`name` of the session in the sandbox, to come back to its files (default a new one)")
	f.DurationVar(&o.idle, "idle", 30*time.Minute, "`time` without a call after which a server removes the sandbox; the next call gets a new one")
	f.StringArrayVarP(&o.env, "env", "e", nil, "environment `NAME=VALUE`, or NAME to pass this shell's value")
	f.StringVarP(&o.workDir, "workdir", "w", "", "working `directory` inside, made if missing (default the image's, else \"/workspace\")")
	f.StringVarP(&o.user, "user", "u", "", "`user` inside: a name, a uid or uid:gid (default the image's, else root of the sandbox)")
	f.StringArrayVarP(&o.volumes, "volume", "v", nil, "show a directory or file inside: `HOST:SANDBOX[:ro]`")
	f.StringArrayVar(&o.allowed, "allow-volume", nil, "`path` that -v may show although it is a part of the machine itself")
	f.StringVar(&o.name, "name", "mcp", "`name` of the sandbox, for people")
	f.StringArrayVar(&o.labels, "label", nil, "`NAME=VALUE` to find the sandbox by")
	o.limits.add(f)
	f.StringVar(&o.provider, "provider", "", "`name` of who makes the sandbox: gvisor or docker (default gvisor, or the server's choice)")
	f.BoolVar(&o.network, "network", false, "let the sandbox reach the internet, but neither this machine nor private networks")
	o.rules.add(f)
	return cmd
}

func categoryNames() []string {
	var names []string
	for _, c := range tool.Categories() {
		names = append(names, string(c))
	}
	return names
}

func (a *app) serveMCP(ctx context.Context, o mcpOptions) (err error) {
	var categories []tool.Category
	for _, name := range o.tools {
		categories = append(categories, tool.Category(name))
	}
	tools, err := tool.New(nil, categories...)
	if err != nil {
		return err
	}
	cfg, err := a.loadConfig(slices.Concat(o.overrides(), a.serverOverride())...)
	if err != nil {
		return err
	}
	serve := mcp.Options{Tools: tools.Audited(a.newCallLog(cfg, "mcp").write), Version: daemon.ReadVersions().Sandpit}
	if serve.Servers, err = readServers(o.servers); err != nil {
		return err
	}
	if o.session != "" && o.sandbox == "" {
		return sandpit.Errorf(sandpit.Invalid, "--session is for sandboxes that are shared: name one with --sandbox")
	}
	if namesServer(cfg) || o.sandbox != "" {
		return a.mcpRemote(ctx, o, cfg, serve)
	}
	spec, err := a.newSpec(o.runOptions, cfg)
	if err != nil {
		return err
	}
	local, err := daemon.OpenLocal(cfg, daemon.Listeners{Notice: a.noticeOnce(cfg)})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, local.Close()) }()
	serve.Open = func(ctx context.Context) (mcp.Place, error) {
		box, err := local.Create(ctx, spec)
		if err != nil {
			return mcp.Place{}, err
		}
		place := mcp.Place{Guest: box.Guest(), ID: "local", Dir: spec.WorkDir, User: spec.User, Close: box.Destroy}
		if err := a.giveSecrets(ctx, o.rules, box); err != nil {
			return place, errors.Join(err, box.Destroy(context.WithoutCancel(ctx)))
		}
		return place, nil
	}
	return mcp.Serve(ctx, serve, io.NopCloser(a.In), nopWriteCloser{a.Out})
}

// readServers reads the list of MCP servers in a file; "" is none.
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

// mcpRemote has a server make the sandbox. Should this program be killed, the server
// removes it when nobody has used it for a while.
func (a *app) mcpRemote(ctx context.Context, o mcpOptions, cfg config.Config, serve mcp.Options) error {
	spec, err := a.newRemoteSpec(o.runOptions, cfg)
	if err != nil {
		return err
	}
	secrets, err := a.newSecrets(o.rules)
	if err != nil {
		return err
	}
	c, err := dialConfigured(cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	if o.sandbox != "" {
		return a.mcpShared(ctx, o, c, serve)
	}
	serve.Open = func(ctx context.Context) (mcp.Place, error) {
		s, err := c.Create(ctx, client.CreateRequest{
			Spec: spec, Secrets: secrets.programs, NetworkSecrets: secrets.network, Provider: o.provider, Offline: o.networkSet && !o.network,
			Policy: client.Policy{IdleTimeout: o.idle, IdleAction: sandpit.ActionKill},
		})
		if err != nil {
			return mcp.Place{}, err
		}
		return mcp.Place{Guest: s.Guest(), ID: s.ID, Dir: s.Spec.WorkDir, User: s.Spec.User, Close: s.Delete, Preview: previews(c, s.ID)}, nil
	}
	return mcp.Serve(ctx, serve, io.NopCloser(a.In), nopWriteCloser{a.Out})
}

// previews returns what tells where the ports of a server's sandbox are seen.
func previews(c *client.Client, id sandpit.ID) func(context.Context, int) (string, error) {
	return func(ctx context.Context, port int) (string, error) {
		u, err := c.PreviewURL(ctx, id, port, 0)
		if err != nil {
			return "", err
		}
		at := cmp.Or(u.URL, u.PathURL)
		if at == "" {
			return "", sandpit.Errorf(sandpit.Unsupported, "this server shows no ports")
		}
		return at, nil
	}
}

// sessionsEnd bounds the end of a session that shares a sandbox.
const sessionsEnd = 30 * time.Second

// mcpShared has the client work in a sandbox that is there, as one of several.
func (a *app) mcpShared(ctx context.Context, o mcpOptions, c *client.Client, serve mcp.Options) error {
	id, err := (&finder{client: c}).find(ctx, o.sandbox)
	if err != nil {
		return err
	}
	box, err := c.Get(ctx, id)
	if err != nil {
		return err
	}
	sessions := tool.NewSessions(tool.SessionsOptions{
		Servers: serve.Servers,
		Open: func(context.Context, string) (tool.Box, error) {
			return tool.Box{Guest: box.Guest(), Close: func(context.Context) error { return nil }}, nil
		},
	})
	serve.Open = func(ctx context.Context) (mcp.Place, error) {
		info, err := sessions.Create(ctx, tool.SessionRequest{ID: o.session, Shared: string(id)})
		if err != nil {
			return mcp.Place{}, err
		}
		place := mcp.Place{ID: id, Close: func(ctx context.Context) error { return sessions.Cleanup(ctx, info.ID, false) }}
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

// nopWriteCloser leaves the stream open for who owns it.
type nopWriteCloser struct{ io.Writer }

func (nopWriteCloser) Close() error { return nil }
