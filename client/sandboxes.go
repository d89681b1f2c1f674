package client

import (
	"cmp"
	"context"
	"crypto/rand"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// CreateRequest describes a sandbox to create. The zero value of a field means its default.
type CreateRequest = api.CreateRequest

// CreateOption changes how Sandboxes.Create sends its request.
type CreateOption func(*createOptions)

// createOptions are what CreateOptions change.
type createOptions struct {
	key string // idempotency key; "": a new one
}

// WithIdempotencyKey makes a creation repeatable: a request with the same key returns the same
// sandbox, also later and from another process. Default, also for "": a new key, so that only this
// call sends the request again.
func WithIdempotencyKey(key string) CreateOption {
	return func(o *createOptions) { o.key = key }
}

// Filter selects sandboxes. The zero value selects all that are not deleted.
type Filter struct {
	// Labels must all be present.
	Labels map[string]string
	// States are the accepted states.
	States []sandpit.State
	// Owner restricts the list to one owner; others than the caller are for administrators. Default:
	// all that the caller may see.
	Owner string
	// Limit bounds the number of results. Default: all.
	Limit int
}

// Sandboxes creates sandboxes and changes their state.
type Sandboxes struct{ client *Client }

// Create creates a sandbox and returns when it runs.
//
// Invalid, Unsupported: the request. Exhausted: a limit or quota is reached. PermissionDenied: a
// directory that may not be mounted. Conflict: the key was used for another request.
func (g Sandboxes) Create(ctx context.Context, r CreateRequest, options ...CreateOption) (*Sandbox, error) {
	var o createOptions
	for _, apply := range options {
		apply(&o)
	}
	var s sandpit.Sandbox
	err := g.client.doCall(ctx, call{
		method: http.MethodPost, path: apiPath("sandboxes"), in: r, out: &s, idempotent: true, untimed: true,
		header: http.Header{wire.HeaderIdempotencyKey: {cmp.Or(o.key, rand.Text())}},
	})
	if err != nil {
		return nil, err
	}
	return g.client.newSandbox(s), nil
}

// Get returns a sandbox, also one that was deleted a short while ago. NotFound.
func (g Sandboxes) Get(ctx context.Context, id sandpit.ID) (*Sandbox, error) {
	var s sandpit.Sandbox
	if err := g.client.doCall(ctx, call{method: http.MethodGet, path: apiPath("sandboxes", string(id)), out: &s, idempotent: true}); err != nil {
		return nil, err
	}
	return g.client.newSandbox(s), nil
}

// List returns sandboxes in the order of their IDs.
func (g Sandboxes) List(ctx context.Context, f Filter) ([]sandpit.Sandbox, error) {
	query := url.Values{}
	for _, name := range slices.Sorted(maps.Keys(f.Labels)) {
		query.Add("label", name+"="+f.Labels[name])
	}
	for _, s := range f.States {
		query.Add("state", string(s))
	}
	if f.Owner != "" {
		query.Set("owner", f.Owner)
	}
	return listPages[sandpit.Sandbox](ctx, g.client, apiPath("sandboxes"), query, f.Limit)
}

// Delete removes a sandbox and its data. An unknown sandbox is NotFound.
func (g Sandboxes) Delete(ctx context.Context, id sandpit.ID) error {
	return g.client.doCall(ctx, call{method: http.MethodDelete, path: apiPath("sandboxes", string(id)), untimed: true})
}

// Stop ends the processes of a sandbox and saves its files.
//
// NotFound: no such sandbox. Gone: it was deleted. Conflict: its state does not allow it.
// Unsupported: its provider cannot do that.
func (g Sandboxes) Stop(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "stop")
}

// Start starts a stopped sandbox. Errors are those of Stop. Exhausted: a limit or quota is
// reached.
func (g Sandboxes) Start(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "start")
}

// Pause freezes a sandbox in memory. Errors are those of Stop.
func (g Sandboxes) Pause(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "pause")
}

// Suspend saves a running or paused sandbox to disk and frees its memory. Errors are those of
// Stop. Exhausted: no space on disk.
func (g Sandboxes) Suspend(ctx context.Context, id sandpit.ID) error {
	return g.client.doCall(ctx, call{
		method: http.MethodPost, path: apiPath("sandboxes", string(id), "pause"), query: url.Values{"disk": {"true"}}, untimed: true,
	})
}

// Checkpoint saves the files of a running sandbox, from which it is recreated after a crash.
// Errors are those of Stop. Exhausted: no space on disk.
func (g Sandboxes) Checkpoint(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "checkpoint")
}

// Resume continues a paused or suspended sandbox. Errors are those of Stop.
func (g Sandboxes) Resume(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "resume")
}

// Archive moves the files of a stopped sandbox to other storage. Errors are those of Stop.
func (g Sandboxes) Archive(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "archive")
}

// Restore moves the files of an archived sandbox back. Errors are those of Stop.
func (g Sandboxes) Restore(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "restore")
}

// post requests a change of a sandbox's state.
func (g Sandboxes) post(ctx context.Context, id sandpit.ID, verb string) error {
	return g.client.doCall(ctx, call{method: http.MethodPost, path: apiPath("sandboxes", string(id), verb), untimed: true})
}

// SetTimeout replaces the deadline of a sandbox: timeout from now, below zero never. Without an
// action, the sandbox keeps the one it has, initially sandpit.ActionKill.
func (g Sandboxes) SetTimeout(ctx context.Context, id sandpit.ID, timeout time.Duration, action sandpit.Action) error {
	return g.client.Sandboxes.setLease(ctx, id, wire.Lease{Timeout: timeout.Seconds(), Action: action})
}

// SetDeadline replaces the deadline of a sandbox, with a precision of a millisecond; the zero
// time means never. Without an action, the sandbox keeps the one it has.
func (g Sandboxes) SetDeadline(ctx context.Context, id sandpit.ID, l sandpit.Lease) error {
	lease := wire.Lease{Deadline: l.Deadline, Action: l.Action}
	if l.Deadline.IsZero() {
		lease.Timeout = -1
	}
	return g.client.Sandboxes.setLease(ctx, id, lease)
}

// setLease replaces the deadline of a sandbox.
func (g Sandboxes) setLease(ctx context.Context, id sandpit.ID, l wire.Lease) error {
	return g.client.doCall(ctx, call{method: http.MethodPut, path: apiPath("sandboxes", string(id), "lease"), in: l, idempotent: true})
}

// SetPolicy replaces the policy of a sandbox: to change one field, begin with its Sandbox.Policy.
// It counts as activity.
//
// NotFound: no such sandbox. Gone: it was deleted. Invalid: the policy. Unsupported: its provider
// cannot do what the policy needs.
func (g Sandboxes) SetPolicy(ctx context.Context, id sandpit.ID, p sandpit.Policy) error {
	return g.client.doCall(ctx, call{method: http.MethodPut, path: apiPath("sandboxes", string(id), "policy"), in: p, idempotent: true})
}

// SetLabels replaces the labels of a sandbox.
func (g Sandboxes) SetLabels(ctx context.Context, id sandpit.ID, labels map[string]string) error {
	return g.client.doCall(ctx, call{method: http.MethodPut, path: apiPath("sandboxes", string(id), "labels"), in: wire.Labels{Labels: labels}, idempotent: true})
}

// Rename gives a sandbox another name, or none if name is empty.
//
// Invalid: the name does not satisfy sandpit.CheckName. AlreadyExists: another sandbox of the
// owner has it.
func (g Sandboxes) Rename(ctx context.Context, id sandpit.ID, name string) error {
	return g.client.doCall(ctx, call{method: http.MethodPut, path: apiPath("sandboxes", string(id), "name"), in: wire.Name{Name: name}, idempotent: true})
}

// Resize changes those limits of a running or stopped sandbox that are not zero in r. A stopped one
// has them from its next start.
//
// NotFound: no such sandbox. Gone: it was deleted. Conflict: it neither runs nor is stopped, or must
// be stopped first. Invalid: a limit, or none is given. Unsupported: its provider cannot do that.
func (g Sandboxes) Resize(ctx context.Context, id sandpit.ID, r sandpit.Resources) error {
	return g.client.doCall(ctx, call{method: http.MethodPost, path: apiPath("sandboxes", string(id), "resize"), in: r, idempotent: true})
}

// Stats measures a running sandbox.
func (g Sandboxes) Stats(ctx context.Context, id sandpit.ID) (sandpit.Stats, error) {
	var s sandpit.Stats
	err := g.client.doCall(ctx, call{method: http.MethodGet, path: apiPath("sandboxes", string(id), "stats"), out: &s, idempotent: true})
	return s, err
}
