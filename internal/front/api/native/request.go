package native

import (
	"context"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// requestBuilder converts requests for sandboxes to those of the manager.
type requestBuilder struct {
	manager  *manager.Manager
	access   api.HostAccess
	lifetime time.Duration // of a sandbox whose request has none; 0: unlimited
}

// Request converts a client's request for a sandbox to one of the manager, as createSandbox
// does.
//
// Invalid, NotFound, PermissionDenied: p cannot have that sandbox.
func (o Options) Request(ctx context.Context, p api.Principal, w wire.Create) (manager.CreateRequest, error) {
	return o.newRequestBuilder().buildRequest(ctx, p, w, "")
}

func (o Options) newRequestBuilder() requestBuilder {
	return requestBuilder{manager: o.Manager, access: o.HostAccess, lifetime: o.Lifetime}
}

// buildRequest converts a request. The key makes it one that can be repeated; "" for none.
func (b requestBuilder) buildRequest(ctx context.Context, p api.Principal, w wire.Create, key string) (manager.CreateRequest, error) {
	r := manager.CreateRequest{
		Owner: p.Owner, Admin: p.Admin, Provider: w.Provider, Spec: w.Spec, Secrets: w.Secrets, Key: key, Offline: w.Offline,
	}
	r.Lease.Action = w.OnTimeout
	r, err := b.manager.Expand(ctx, r) // the mounts of a snapshot must be authorized, too
	if err == nil {
		err = b.access.AuthorizeSpec(p, &r.Spec, api.Consent{Paths: w.AllowPaths})
	}
	if err != nil {
		return r, err
	}
	r.Setup = newSetup(w, r.Spec)
	if r.Timeout, err = toDuration("create_timeout_seconds", w.CreateTimeout); err != nil {
		return r, err
	}
	if r.Policy, err = toPolicy(w.Policy); err != nil {
		return r, err
	}
	life, err := toDuration("timeout_seconds", w.Timeout)
	if err != nil {
		return r, err
	}
	if w.Timeout == 0 {
		life = b.lifetime
	}
	r.Endless = life < 0
	if life > 0 {
		r.Lease.Deadline = time.Now().Add(life)
	}
	return r, nil
}
