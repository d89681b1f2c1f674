package client

import (
	"context"
	"crypto/rand"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// CreateRequest asks for a sandbox. The zero value of a field means the default
// stated with it.
type CreateRequest struct {
	// Spec says what it shall be. Default: the server's image and limits.
	Spec sandpit.Spec
	// Provider is who makes it. Default: the server's.
	Provider string
	// Timeout is how long it may exist; below zero is for ever. Default: the server's.
	Timeout time.Duration
	// OnTimeout is what happens then. Default: sandpit.ActionKill.
	OnTimeout sandpit.Action
	// Policy says what happens when nobody uses it, or when it is lost. Default: an idle one is
	// suspended (paused on disk), and resumes when it is used.
	Policy sandpit.Policy
	// Offline keeps a network from it, whatever the server's default is.
	Offline bool
	// NetworkSecrets are what headers of the spec's network refer to. The server keeps
	// them in memory, and tells them nobody.
	NetworkSecrets map[string]string
	// Secrets are environment that only its programs have: they are told by no answer, and
	// are in no snapshot or copy. The server keeps them until the sandbox is gone.
	Secrets map[string]string
	// AllowPaths are absolute paths of the server's machine that mounts may show although
	// they are refused otherwise: /, /etc, home directories, credentials, sockets and the
	// server's own files. Only administrators may name any. Default: none.
	AllowPaths []string
	// Repository is cloned into it, by its own git and network, before it counts as
	// running. If that fails, there is no sandbox. Default: none.
	Repository *api.Repository
	// CreateTimeout is how long the making may take, cloning included. Default: the server's.
	CreateTimeout time.Duration
	// Key makes this a request that may be sent again, also later and by another
	// process. Default: a new one, so that it is sent again only by this call.
	Key string
}

// Filter chooses sandboxes. Fields that are zero choose everything but deleted ones.
type Filter struct {
	// Labels must all be there.
	Labels map[string]string
	// States is any of these.
	States []sandpit.State
	// Owner is whose, for those who may see everybody's. Default: all that can be seen.
	Owner string
	// Limit is at most so many. Default: all.
	Limit int
}

// Sandboxes manages the sandboxes of the server.
type Sandboxes struct{ client *Client }

// Create makes a sandbox and returns it when it runs.
//
// Invalid, Unsupported: the request. Exhausted: no room. PermissionDenied: a
// directory that may not be shown. Conflict: the key was used for another request.
func (g Sandboxes) Create(ctx context.Context, r CreateRequest) (*Sandbox, error) {
	key := r.Key
	if key == "" {
		key = rand.Text()
	}
	var s sandpit.Sandbox
	err := g.client.do(ctx, call{
		method: http.MethodPost, path: path("sandboxes"), out: &s, again: true, untimed: true,
		header: http.Header{wire.HeaderIdempotencyKey: {key}},
		in: wire.Create{
			Spec: r.Spec, Provider: r.Provider, Timeout: r.Timeout.Seconds(), OnTimeout: r.OnTimeout, Offline: r.Offline,
			Policy:        wire.PolicyOf(r.Policy),
			CreateTimeout: r.CreateTimeout.Seconds(), NetworkSecrets: r.NetworkSecrets, Secrets: r.Secrets, Repository: r.Repository,
			AllowPaths: r.AllowPaths,
		},
	})
	if err != nil {
		return nil, err
	}
	return g.client.sandbox(s), nil
}

// Get returns a sandbox, also one that was deleted a short while ago. NotFound.
func (g Sandboxes) Get(ctx context.Context, id sandpit.ID) (*Sandbox, error) {
	var s sandpit.Sandbox
	if err := g.client.do(ctx, call{method: http.MethodGet, path: path("sandboxes", string(id)), out: &s, again: true}); err != nil {
		return nil, err
	}
	return g.client.sandbox(s), nil
}

// pageSize is how many are asked for at once.
const pageSize = 500

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
	return pages[sandpit.Sandbox](ctx, g.client, path("sandboxes"), query, f.Limit)
}

// The bounds of a list: one that never comes to an end is none.
const (
	maxItems = 1_000_000
	maxEmpty = 100 // pages one after the other
)

// pages fetches a list page by page. A limit of zero means all.
func pages[T any](ctx context.Context, c *Client, at string, query url.Values, limit int) ([]T, error) {
	var list []T
	for empty := 0; ; {
		size := pageSize
		if limit > 0 {
			size = min(size, limit-len(list))
		}
		query.Set("limit", strconv.Itoa(size))
		var page wire.Page[T]
		if err := c.do(ctx, call{method: http.MethodGet, path: at, query: query, out: &page, again: true}); err != nil {
			return nil, err
		}
		list = append(list, page.Items...)
		if limit > 0 && len(list) > limit {
			list = list[:limit] // it was not asked for more
		}
		if empty++; len(page.Items) > 0 {
			empty = 0
		}
		if len(list) > maxItems || empty > maxEmpty {
			return nil, sandpit.Errorf(sandpit.Exhausted, "the server's list does not end: %d entries until now", len(list))
		}
		if page.Next == "" || page.Next == query.Get("cursor") || limit > 0 && len(list) >= limit {
			return list, nil
		}
		query.Set("cursor", page.Next)
	}
}

// Delete ends a sandbox and removes everything of it. One that is unknown is NotFound.
func (g Sandboxes) Delete(ctx context.Context, id sandpit.ID) error {
	return g.client.do(ctx, call{method: http.MethodDelete, path: path("sandboxes", string(id)), untimed: true})
}

// Stop ends the processes of a sandbox, its files kept.
//
// NotFound: no such sandbox. Gone: it was deleted. Conflict: its state forbids it.
// Unsupported: its provider cannot do that.
func (g Sandboxes) Stop(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "stop")
}

// Start starts a stopped sandbox. Errors as with Stop, and Exhausted: no room.
func (g Sandboxes) Start(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "start")
}

// Pause holds a sandbox still, its memory kept. Errors as with Stop.
func (g Sandboxes) Pause(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "pause")
}

// Suspend pauses a sandbox on disk, whether it runs or is paused in memory. Errors as
// with Stop, and Exhausted: no room on disk.
func (g Sandboxes) Suspend(ctx context.Context, id sandpit.ID) error {
	return g.client.do(ctx, call{
		method: http.MethodPost, path: path("sandboxes", string(id), "pause"), query: url.Values{"disk": {"true"}}, untimed: true,
	})
}

// Checkpoint saves the files of a running sandbox, which it begins with if it is made
// again after a crash. Errors as with Stop, and Exhausted: no room on disk.
func (g Sandboxes) Checkpoint(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "checkpoint")
}

// Resume lets a paused sandbox go on. Errors as with Stop.
func (g Sandboxes) Resume(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "resume")
}

// Archive moves the files of a stopped sandbox to where they cost little. Errors as
// with Stop.
func (g Sandboxes) Archive(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "archive")
}

// Restore moves the files of an archived sandbox back. Errors as with Stop.
func (g Sandboxes) Restore(ctx context.Context, id sandpit.ID) error {
	return g.client.Sandboxes.post(ctx, id, "restore")
}

func (g Sandboxes) post(ctx context.Context, id sandpit.ID, verb string) error {
	return g.client.do(ctx, call{method: http.MethodPost, path: path("sandboxes", string(id), verb), untimed: true})
}

// SetTimeout replaces the deadline of a sandbox: timeout from now, below zero never.
// Without an action, it keeps the one it has, at first sandpit.ActionKill.
func (g Sandboxes) SetTimeout(ctx context.Context, id sandpit.ID, timeout time.Duration, action sandpit.Action) error {
	return g.client.Sandboxes.setLease(ctx, id, wire.Lease{Timeout: timeout.Seconds(), Action: action})
}

// SetDeadline replaces the deadline of a sandbox; the zero time means never. It is
// kept to the millisecond. Without an action, the sandbox keeps the one it has.
func (g Sandboxes) SetDeadline(ctx context.Context, id sandpit.ID, l sandpit.Lease) error {
	lease := wire.Lease{Deadline: l.Deadline, Action: l.Action}
	if l.Deadline.IsZero() {
		lease.Timeout = -1
	}
	return g.client.Sandboxes.setLease(ctx, id, lease)
}

func (g Sandboxes) setLease(ctx context.Context, id sandpit.ID, l wire.Lease) error {
	return g.client.do(ctx, call{method: http.MethodPut, path: path("sandboxes", string(id), "lease"), in: l, again: true})
}

// SetPolicy replaces the policy of a sandbox: to change one field, begin with its
// Sandbox.Policy. It counts as a use.
//
// NotFound: no such sandbox. Gone: it was deleted. Invalid: the policy. Unsupported: its
// provider cannot do what it asks for.
func (g Sandboxes) SetPolicy(ctx context.Context, id sandpit.ID, p sandpit.Policy) error {
	return g.client.do(ctx, call{method: http.MethodPut, path: path("sandboxes", string(id), "policy"), in: wire.PolicyOf(p), again: true})
}

// SetLabels replaces the labels of a sandbox.
func (g Sandboxes) SetLabels(ctx context.Context, id sandpit.ID, labels map[string]string) error {
	return g.client.do(ctx, call{method: http.MethodPut, path: path("sandboxes", string(id), "labels"), in: wire.Labels{Labels: labels}, again: true})
}

// Rename gives a sandbox another name, or none if name is empty.
//
// Invalid: the name is not as sandpit.CheckName wants it. AlreadyExists: another sandbox of
// the owner has it.
func (g Sandboxes) Rename(ctx context.Context, id sandpit.ID, name string) error {
	return g.client.do(ctx, call{method: http.MethodPut, path: path("sandboxes", string(id), "name"), in: wire.Name{Name: name}, again: true})
}

// SandboxStats measures a running sandbox.
func (g Sandboxes) Stats(ctx context.Context, id sandpit.ID) (sandpit.Stats, error) {
	var s sandpit.Stats
	err := g.client.do(ctx, call{method: http.MethodGet, path: path("sandboxes", string(id), "stats"), out: &s, again: true})
	return s, err
}
