package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

const (
	// projectLabel is the label of the sandbox of a project.
	projectLabel = "agent-project"
	// agentIdle is how long a server keeps the sandbox of an agent whose program was killed.
	agentIdle = 30 * time.Minute
)

// agentPlace is where the sandbox of an agent is created.
type agentPlace struct {
	open  func(context.Context) (agent.Sandbox, error)
	close func() error
}

// openPlace connects to the server, or prepares the engine of this machine. It creates no sandbox.
// Earlier is the sandbox of a transcript that is resumed, or "".
func (o *agentCommand) openPlace(ctx context.Context, a *app, cfg config.Config, earlier sandpit.ID, secrets sandboxSecrets) (agentPlace, error) {
	there, ok := o.chooseServer(cfg)
	if !ok && (o.project != "" || o.keep) {
		url, runs := cfg.LocalServer()
		if !runs {
			return agentPlace{}, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "--project and --keep need a server: without one the sandbox ends with this program"), "start one: sandpit serve")
		}
		there, ok = cfg, true
		there.URL = url
	}
	if ok {
		return o.openRemotePlace(a, there, earlier, secrets)
	}
	return o.openLocalPlace(ctx, a, cfg, secrets)
}

// openLocalPlace creates sandboxes with the engine of this program.
func (o *agentCommand) openLocalPlace(ctx context.Context, a *app, cfg config.Config, secrets sandboxSecrets) (agentPlace, error) {
	spec, err := o.toSpec(a, cfg)
	if err != nil {
		return agentPlace{}, err
	}
	logger := slog.New(slog.NewTextHandler(a.Err, nil))
	local, err := daemon.OpenLocal(ctx, cfg, daemon.Listeners{
		Notice: a.newNoticeOnce(cfg), Admit: daemon.Admission(cfg, logger), ConfineFiles: cfg.Sandbox.ConfineFiles,
	})
	if err != nil {
		return agentPlace{}, err
	}
	open := func(ctx context.Context) (agent.Sandbox, error) {
		box, err := local.Create(ctx, spec)
		if err != nil {
			return agent.Sandbox{}, o.explainImage(err)
		}
		if err := secrets.giveTo(ctx, box); err != nil {
			return agent.Sandbox{}, errors.Join(err, box.Destroy(context.WithoutCancel(ctx)))
		}
		opened := agent.Sandbox{ID: box.ID(), Guest: box.Guest(), User: spec.User, Dir: o.workDir, Close: box.Destroy}
		if renewer, ok := sandpit.As[sandpit.Renewer](box); ok { // of a cloud, which ends sandboxes on its own
			opened.Renew = func(ctx context.Context) error { return renewer.Renew(ctx, spec.Expiry) }
		}
		return opened, nil
	}
	return agentPlace{open, local.Close}, nil
}

// openRemotePlace creates sandboxes on a server.
func (o *agentCommand) openRemotePlace(a *app, cfg config.Config, earlier sandpit.ID, secrets sandboxSecrets) (agentPlace, error) {
	spec, err := o.toRemoteSpec(a, cfg)
	if err != nil {
		return agentPlace{}, err
	}
	request := client.CreateRequest{
		Spec: spec, Secrets: secrets.programs, NetworkSecrets: secrets.network, Provider: chosenProvider(cfg, o.provider), Offline: o.networkSet && !o.network,
	}
	switch {
	case o.project != "":
		if request.Spec.Labels == nil {
			request.Spec.Labels = map[string]string{}
		}
		request.Spec.Labels[projectLabel] = o.project
		request.Timeout = -1
	case o.keep:
		request.Timeout = -1
	default:
		request.Policy = sandpit.Policy{IdleTimeout: agentIdle, IdleAction: sandpit.ActionKill}
	}
	c, err := newConfiguredClient(cfg)
	if err != nil {
		return agentPlace{}, err
	}
	r := &remoteAgentPlace{o: o, a: a, client: c, request: request, earlier: earlier}
	if o.project != "" {
		r.key = "agent-project-" + o.project
	}
	return agentPlace{r.open, func() error { c.Close(); return nil }}, nil
}

// remoteAgentPlace creates sandboxes of a server, or finds the one of a project or transcript.
type remoteAgentPlace struct {
	o       *agentCommand
	a       *app
	client  *client.Client
	request client.CreateRequest
	// key makes agents of a project that begin at the same time use one sandbox.
	key     string
	earlier sandpit.ID
	// released are sandboxes that the agent has given back. If it asks for another one, they have
	// ended, although the server may still list one whose deletion is in progress.
	released []sandpit.ID
}

func (r *remoteAgentPlace) open(ctx context.Context) (agent.Sandbox, error) {
	s, err := r.find(ctx)
	kept := r.o.keep || r.o.project != "" || s != nil && isKept(s.Sandbox)
	if err == nil && s == nil {
		s, err = r.client.Sandboxes.Create(ctx, r.request, client.WithIdempotencyKey(r.key))
		if code := sandpit.CodeOf(err); r.o.project != "" && (code == sandpit.Conflict || code == sandpit.AlreadyExists || code == sandpit.Gone) {
			// The key belongs to another request, or to a sandbox that was deleted.
			if s, err = r.find(ctx); err == nil && s == nil {
				s, err = r.client.Sandboxes.Create(ctx, r.request)
			}
		}
	}
	if err != nil {
		return agent.Sandbox{}, r.o.explainImage(err)
	}
	place := newRemoteSandbox(r.client, s)
	opened := agent.Sandbox{
		ID: s.ID, User: s.Spec.User, Dir: r.o.workDir,
		Wake: func(ctx context.Context) (sandpit.Guest, error) {
			held, err := place.holdSandbox(ctx)
			if err != nil {
				return nil, err
			}
			return held.Guest(), nil
		},
		Preview: func(ctx context.Context, port int) (agent.Link, error) {
			page, err := previewURLs(r.client, s.ID)(ctx, port)
			return agent.Link(page), err
		},
		Close: s.Delete,
	}
	if kept { // unused, it is suspended or stopped as its policy says, and Wake resumes it
		opened.Close = func(ctx context.Context) error { return r.keep(ctx, s.ID) }
		return opened, nil
	}
	opened.Renew = func(ctx context.Context) error { return useSandbox(ctx, r.client, s.ID) }
	return opened, nil
}

// useSandbox has the server count a use of a sandbox that runs.
func useSandbox(ctx context.Context, c *client.Client, id sandpit.ID) error {
	s, err := c.Sandboxes.Get(ctx, id)
	if err != nil || s.State != sandpit.StateRunning { // paused by a person: a use would resume it
		return err
	}
	_, err = s.Guest().Stat(ctx, "", "/")
	return err
}

// isKept reports whether the sandbox of a transcript was created to outlive its agent: with --keep, or for
// a project.
func isKept(s sandpit.Sandbox) bool {
	return s.Spec.Labels[projectLabel] != "" || s.Policy.IdleAction != sandpit.ActionKill || s.Policy.IdleTimeout != agentIdle
}

// keep gives a sandbox back that is not deleted, and says so if it still exists.
func (r *remoteAgentPlace) keep(ctx context.Context, id sandpit.ID) error {
	r.released = append(r.released, id)
	s, err := r.client.Sandboxes.Get(ctx, id)
	if code := sandpit.CodeOf(err); err == nil && s.State == sandpit.StateDeleted || code == sandpit.NotFound || code == sandpit.Gone {
		return nil
	}
	fmt.Fprintf(r.a.Err, "the sandbox is kept: %s (remove it: sandpit rm %s)\n", id, id)
	return nil // also without an answer of the server, which keeps it
}

// find returns the sandbox of the transcript or project, or nil if it does not exist.
func (r *remoteAgentPlace) find(ctx context.Context) (*client.Sandbox, error) {
	if id := r.earlier; id != "" {
		r.earlier = ""
		s, err := r.client.Sandboxes.Get(ctx, id)
		if code := sandpit.CodeOf(err); err == nil && s.State != sandpit.StateDeleted || err != nil && code != sandpit.NotFound && code != sandpit.Gone {
			return s, err
		}
	}
	if r.o.project == "" {
		return nil, nil //nolint:nilnil // no sandbox
	}
	list, err := r.client.Sandboxes.List(ctx, client.Filter{Labels: map[string]string{projectLabel: r.o.project}})
	if err != nil {
		return nil, err
	}
	list = slices.DeleteFunc(list, func(s sandpit.Sandbox) bool {
		return s.State == sandpit.StateError || s.State == sandpit.StateDeleting || s.State == sandpit.StateDeleted || slices.Contains(r.released, s.ID)
	})
	if len(list) == 0 {
		return nil, nil //nolint:nilnil // no sandbox
	}
	oldest := slices.MinFunc(list, func(a, b sandpit.Sandbox) int { return a.CreatedAt.Compare(b.CreatedAt) })
	return r.client.Sandboxes.Get(ctx, oldest.ID)
}
