package native

import (
	"context"
	"net/http"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

const (
	pathSandboxes = wire.Prefix + "/sandboxes"
	pathSandbox   = pathSandboxes + "/{id}"
)

// SandboxPath names a sandbox. It is exported because huma requires that of embedded types.
type SandboxPath struct {
	ID sandpit.ID `path:"id" doc:"ID of the sandbox."`
}

// sandboxOut is a sandbox.
type sandboxOut struct {
	Body sandpit.Sandbox
}

type sandboxesIn struct {
	PageIn

	Labels []string `query:"label,explode" maxItems:"64" nullable:"false" doc:"key=value; sandboxes must have all of these labels."`
	States []string `query:"state,explode" maxItems:"20" nullable:"false" doc:"States of the sandboxes. Default: all except deleted."`
	// Owner is last, unlike OwnerIn: the order of the parameters is that of the arguments of generated clients.
	Owner string `query:"owner" maxLength:"200" doc:"The owner; only administrators may name another owner. Default: the client's own; for administrators, all owners."`
}

type sandboxesOut struct {
	Body wire.Page[sandpit.Sandbox]
}

type statsOut struct {
	Body sandpit.Stats
}

// sandboxHandlers serve sandboxes: what creates, finds, changes and deletes them.
type sandboxHandlers struct {
	manager *manager.Manager
	hosts   api.HostAccess
	access  access
}

// addOperations adds the operations that create, find and delete sandboxes.
func (h *sandboxHandlers) addOperations(r *registrar) {
	op := newOperation(http.MethodPost, pathSandboxes, "createSandbox", "Create a sandbox")
	op.DefaultStatus = http.StatusCreated
	op.Description = "Responds when the sandbox runs. If the client disconnects before the response, the sandbox is deleted."
	addOperation(r, op, h.createSandbox)
	addOperation(r, newOperation(http.MethodGet, pathSandboxes, "listSandboxes", "List sandboxes"), h.listSandboxes)
	addOperation(r, newOperation(http.MethodGet, pathSandbox, "getSandbox", "Get a sandbox"), func(ctx context.Context, in *SandboxPath) (*sandboxOut, error) {
		return getSandbox(ctx, h.manager, in.ID)
	})
	op = newOperation(http.MethodDelete, pathSandbox, "deleteSandbox", "Delete a sandbox")
	op.Description = "Deleting a sandbox that was deleted recently is not an error."
	op.DefaultStatus = http.StatusNoContent
	addOperation(r, op, func(ctx context.Context, in *SandboxPath) (*struct{}, error) {
		if _, err := api.Find(ctx, h.manager, in.ID); err != nil {
			return nil, err
		}
		return nil, h.manager.Delete(ctx, in.ID)
	})
	op = newOperation(http.MethodGet, pathSandbox+"/stats", "measureSandbox", "Measure a sandbox")
	op.Description = "Does not count as a use of the sandbox. cpu is in nanoseconds."
	addOperation(r, op, func(ctx context.Context, in *SandboxPath) (*statsOut, error) {
		if _, err := api.Find(ctx, h.manager, in.ID); err != nil {
			return nil, err
		}
		stats, err := h.manager.Usage().Measure(ctx, in.ID)
		return &statsOut{stats}, err
	})
}

// getSandbox returns a sandbox as it is now.
func getSandbox(ctx context.Context, m *manager.Manager, id sandpit.ID) (*sandboxOut, error) {
	found, err := api.Find(ctx, m, id)
	return &sandboxOut{found}, err
}

func (h *sandboxHandlers) listSandboxes(ctx context.Context, in *sandboxesIn) (*sandboxesOut, error) {
	owner, _, err := h.access.listOwner(ctx, in.Owner, "list sandboxes of others")
	if err != nil {
		return nil, err
	}
	after, err := parseCursor[sandpit.ID](in.Cursor)
	if err != nil {
		return nil, err
	}
	f := manager.Filter{Owner: owner, After: after, Limit: in.Limit + 1}
	for _, label := range in.Labels {
		key, value, ok := strings.Cut(label, "=")
		if !ok || key == "" {
			return nil, sandpit.Errorf(sandpit.Invalid, "label %.100q: want key=value", label)
		}
		if f.Labels == nil {
			f.Labels = make(map[string]string)
		}
		if other, twice := f.Labels[key]; twice && other != value {
			return &sandboxesOut{wire.Page[sandpit.Sandbox]{Items: []sandpit.Sandbox{}}}, nil // a label has one value
		}
		f.Labels[key] = value
	}
	for _, state := range in.States {
		if !sandpit.State(state).Valid() {
			return nil, sandpit.Errorf(sandpit.Invalid, "unknown state %.40q", state)
		}
		f.States = append(f.States, sandpit.State(state))
	}
	page := toPage(h.manager.List(f), in.Limit, func(b sandpit.Sandbox) string { return string(b.ID) })
	return &sandboxesOut{page}, nil
}
