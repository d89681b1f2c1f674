package client

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// ForkRequest describes forks of a sandbox. The zero value of a field means its default.
type ForkRequest struct {
	// Count is the number of forks. Default: 1. At most 100.
	Count int
	// Labels and Env are added to those of the sandbox, and take precedence.
	Labels, Env map[string]string
	// Secrets are those of the forks, which do not get the sandbox's. Default: none.
	Secrets map[string]string
}

// Fork creates new sandboxes from the current state of a running or paused one, which keeps
// running: all or none. Errors are those of Snapshots.Create and Create.
func (g Sandboxes) Fork(ctx context.Context, id sandpit.ID, r ForkRequest) ([]*Sandbox, error) {
	var page wire.Page[sandpit.Sandbox]
	err := g.client.doCall(ctx, call{
		method: http.MethodPost, path: apiPath("sandboxes", string(id), "fork"), out: &page, untimed: true,
		in: wire.Fork{Count: r.Count, Labels: r.Labels, Env: r.Env, Secrets: r.Secrets},
	})
	if err != nil {
		return nil, err
	}
	list := make([]*Sandbox, len(page.Items))
	for i, s := range page.Items {
		list[i] = g.client.newSandbox(s)
	}
	return list, nil
}

// Rollback returns a running or paused sandbox to one of its snapshots; it runs afterwards.
//
// NotFound: no such snapshot. Invalid: the snapshot is of another sandbox. Conflict: the sandbox
// is neither running nor paused. Unsupported: its provider cannot do that.
func (g Sandboxes) Rollback(ctx context.Context, id sandpit.ID, snapshot string) error {
	return g.client.doCall(ctx, call{
		method: http.MethodPost, path: apiPath("sandboxes", string(id), "rollback"), in: wire.Rollback{Snapshot: snapshot}, untimed: true,
	})
}
