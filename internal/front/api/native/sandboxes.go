package native

import (
	"context"
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

const (
	pathSandboxes = wire.Prefix + "/sandboxes"
	pathSandbox   = pathSandboxes + "/{id}"
)

// One names a sandbox. It is exported, as huma asks of what is embedded.
type One struct {
	ID sandpit.ID `path:"id" doc:"The sandbox."`
}

// sandboxOut is a sandbox.
type sandboxOut struct {
	Body sandpit.Sandbox
}

type createIn struct {
	Key  string `header:"Idempotency-Key" maxLength:"200" doc:"Makes this a request that may be sent again: while the sandbox exists the same request returns it."`
	Body wire.Create
}

type createOut struct {
	Location string `header:"Location" doc:"The path of the sandbox."`
	Body     sandpit.Sandbox
}

type listIn struct {
	Cursor string   `query:"cursor" maxLength:"100" doc:"That of the page before."`
	Limit  int      `query:"limit" minimum:"1" maximum:"1000" default:"100" doc:"At most so many."`
	Labels []string `query:"label,explode" maxItems:"64" nullable:"false" doc:"key=value; all must be there."`
	States []string `query:"state,explode" maxItems:"20" nullable:"false" doc:"Any of these. Default: all but deleted."`
	Owner  string   `query:"owner" maxLength:"200" doc:"Whose; for administrators. Default: everybody's, to them."`
}

type listOut struct {
	Body wire.Page[sandpit.Sandbox]
}

type statsOut struct {
	Body sandpit.Stats
}

// sandboxes registers what makes, finds and ends sandboxes.
func (s *server) sandboxes() {
	op := operation(http.MethodPost, pathSandboxes, "createSandbox", "Make a sandbox")
	op.DefaultStatus = http.StatusCreated
	op.Description = "Answers when it runs. If the client gives up before, what was made is taken back."
	add(s, op, s.create)
	add(s, operation(http.MethodGet, pathSandboxes, "listSandboxes", "List sandboxes"), s.list)
	add(s, operation(http.MethodGet, pathSandbox, "getSandbox", "Look at a sandbox"), func(ctx context.Context, in *One) (*sandboxOut, error) {
		return s.look(ctx, in.ID)
	})
	op = operation(http.MethodDelete, pathSandbox, "deleteSandbox", "Delete a sandbox")
	op.Description = "One that was deleted already is no error, as long as it is remembered."
	op.DefaultStatus = http.StatusNoContent
	add(s, op, func(ctx context.Context, in *One) (*struct{}, error) {
		if _, err := api.Find(ctx, s.Manager, in.ID); err != nil {
			return nil, err
		}
		return nil, s.Manager.Delete(ctx, in.ID)
	})
	op = operation(http.MethodGet, pathSandbox+"/stats", "measureSandbox", "Measure a sandbox")
	op.Description = "It is no use of the sandbox, which may be idle all the while. cpu is in nanoseconds."
	add(s, op, func(ctx context.Context, in *One) (*statsOut, error) {
		if _, err := api.Find(ctx, s.Manager, in.ID); err != nil {
			return nil, err
		}
		stats, err := s.Manager.Measure(ctx, in.ID)
		return &statsOut{stats}, err
	})
}

// look returns a sandbox as it is now.
func (s *server) look(ctx context.Context, id sandpit.ID) (*sandboxOut, error) {
	found, err := api.Find(ctx, s.Manager, id)
	return &sandboxOut{found}, err
}

func (s *server) create(ctx context.Context, in *createIn) (*createOut, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	r, err := s.request(ctx, p, in)
	if err != nil {
		s.Manager.Report(manager.Report{Actor: p.Owner, Action: "create", Err: err})
		return nil, err
	}
	made, err := s.Manager.Create(ctx, r)
	if err != nil {
		return nil, err
	}
	return &createOut{pathSandboxes + "/" + string(made.ID), made}, nil
}

// Request puts what p asks for into the words of the manager, as for createSandbox.
//
// Invalid, NotFound, PermissionDenied: p cannot have that.
func (o Options) Request(ctx context.Context, p api.Principal, w wire.Create) (manager.CreateRequest, error) {
	return (&server{Options: o}).request(ctx, p, &createIn{Body: w})
}

// request puts what is asked for into the words of the manager.
func (s *server) request(ctx context.Context, p api.Principal, in *createIn) (manager.CreateRequest, error) {
	r := manager.CreateRequest{Owner: p.Owner, Admin: p.Admin, Provider: in.Body.Provider, Spec: in.Body.Spec, Secrets: in.Body.Secrets, Key: in.Key, Offline: in.Body.Offline}
	r.Lease.Action = in.Body.OnTimeout
	r, err := s.Manager.Expand(ctx, r) // what a snapshot has must be allowed, too
	if err == nil {
		err = s.allow(p, &r.Spec, in.Body.AllowPaths)
	}
	if err != nil {
		return r, err
	}
	r.Setup = setup(in.Body, r.Spec)
	if r.Timeout, err = seconds("create_timeout_seconds", in.Body.CreateTimeout); err != nil {
		return r, err
	}
	if r.Policy, err = policy(in.Body.Policy); err != nil {
		return r, err
	}
	life, err := seconds("timeout_seconds", in.Body.Timeout)
	if err != nil {
		return r, err
	}
	if in.Body.Timeout == 0 {
		life = s.Lifetime
	}
	r.Endless = life < 0
	if life > 0 {
		r.Lease.Deadline = time.Now().Add(life)
	}
	return r, nil
}

func policy(w wire.Policy) (p store.Policy, err error) {
	p.IdleAction, p.Recreate, p.IgnoreBackground = w.IdleAction, w.Recreate, w.IgnoreBackground
	p.WakeOnUse = w.WakeOnUse
	for _, f := range []struct {
		name string
		from float64
		to   *time.Duration
	}{
		{"policy.idle_timeout_seconds", w.IdleTimeout, &p.IdleTimeout},
		{"policy.auto_stop_seconds", w.AutoStop, &p.AutoStop},
		{"policy.auto_suspend_seconds", w.AutoSuspend, &p.AutoSuspend},
		{"policy.checkpoint_every_seconds", w.CheckpointEvery, &p.CheckpointEvery},
		{"policy.auto_archive_seconds", w.AutoArchive, &p.AutoArchive},
		{"policy.auto_delete_seconds", w.AutoDelete, &p.AutoDelete},
	} {
		if *f.to, err = seconds(f.name, f.from); err != nil {
			return p, err
		}
	}
	return p, nil
}

func (s *server) list(ctx context.Context, in *listIn) (*listOut, error) {
	p, err := api.PrincipalOf(ctx)
	if err != nil {
		return nil, err
	}
	f := manager.Filter{Owner: in.Owner, After: sandpit.ID(in.Cursor), Limit: in.Limit + 1}
	if !p.Admin {
		if in.Owner != "" && in.Owner != p.Owner {
			return nil, s.administrator(ctx, "list sandboxes of others")
		}
		f.Owner = p.Owner
	}
	if in.Cursor != "" && f.After.Validate() != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "cursor %.40q: it is none", in.Cursor)
	}
	for _, label := range in.Labels {
		key, value, ok := strings.Cut(label, "=")
		if !ok || key == "" {
			return nil, sandpit.Errorf(sandpit.Invalid, "label %.100q: want key=value", label)
		}
		if f.Labels == nil {
			f.Labels = make(map[string]string)
		}
		if other, twice := f.Labels[key]; twice && other != value {
			return &listOut{wire.Page[sandpit.Sandbox]{Items: []sandpit.Sandbox{}}}, nil // none has both
		}
		f.Labels[key] = value
	}
	for _, state := range in.States {
		if !sandpit.State(state).Valid() {
			return nil, sandpit.Errorf(sandpit.Invalid, "state %.40q: there is no such state", state)
		}
		f.States = append(f.States, sandpit.State(state))
	}
	page := paged(s.Manager.List(f), in.Limit, func(b sandpit.Sandbox) string { return string(b.ID) })
	return &listOut{page}, nil
}

// paged makes a page of a list that has one more if there are more.
func paged[T any](list []T, limit int, cursor func(T) string) wire.Page[T] {
	p := wire.Page[T]{Items: list}
	if list == nil {
		p.Items = []T{}
	}
	if len(list) > limit {
		p.Items = list[:limit]
		p.Next = cursor(p.Items[limit-1])
	}
	return p
}
