package client

import (
	"context"
	"io"
	"net/http"
	"net/url"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// Snapshots manages saved states of sandboxes.
type Snapshots struct{ client *Client }

// Create saves a running or paused sandbox, which goes on. The name "" is none.
// Sandboxes with the image "snapshot:" and its ID or name begin as it is.
//
// Invalid: the name. AlreadyExists: it is taken. Conflict: the sandbox is neither running
// nor paused. Exhausted: there are as many snapshots, or as large ones, as there may be.
// Unsupported: its provider cannot do that.
func (g Snapshots) Create(ctx context.Context, id sandpit.ID, name string) (sandpit.Snapshot, error) {
	var s sandpit.Snapshot
	err := g.client.do(ctx, call{
		method: http.MethodPost, path: path("snapshots"), in: wire.NewSnapshot{Sandbox: id, Name: name}, out: &s, untimed: true,
	})
	return s, err
}

// SnapshotFilter chooses snapshots. Fields that are zero choose everything that can be
// seen.
type SnapshotFilter struct {
	Owner   string
	Sandbox sandpit.ID // what they were taken of
	Limit   int        // at most so many
}

// Snapshots lists snapshots in the order of their IDs.
func (g Snapshots) List(ctx context.Context, f SnapshotFilter) ([]sandpit.Snapshot, error) {
	query := ownerQuery(f.Owner)
	if f.Sandbox != "" {
		query.Set("sandbox", string(f.Sandbox))
	}
	return pages[sandpit.Snapshot](ctx, g.client, path("snapshots"), query, f.Limit)
}

// Snapshot returns a snapshot by its ID or name. The owner "" is the caller. NotFound.
func (g Snapshots) Get(ctx context.Context, owner, name string) (sandpit.Snapshot, error) {
	return get[sandpit.Snapshot](ctx, g.client, path("snapshots", name), ownerQuery(owner))
}

// DeleteSnapshot removes a snapshot; sandboxes that were made of it go on. The owner "" is
// the caller.
//
// NotFound: there is none. Conflict: it is being used.
func (g Snapshots) Delete(ctx context.Context, owner, name string) error {
	return g.client.do(ctx, call{method: http.MethodDelete, path: path("snapshots", name), query: ownerQuery(owner), untimed: true})
}

// ForkRequest says what copies of a sandbox shall be. The zero value of a field means the
// default stated with it.
type ForkRequest struct {
	// Count is how many. Default: 1. At most 100.
	Count int
	// Labels and Env are added to those of the sandbox, and go before them.
	Labels, Env map[string]string
	// Secrets are those of the copies, which do not have the sandbox's. Default: none.
	Secrets map[string]string
}

// Fork makes copies of a running or paused sandbox, which goes on: all or none. Errors are
// those of CreateSnapshot and Create.
func (g Sandboxes) Fork(ctx context.Context, id sandpit.ID, r ForkRequest) ([]*Sandbox, error) {
	var page wire.Page[sandpit.Sandbox]
	err := g.client.do(ctx, call{
		method: http.MethodPost, path: path("sandboxes", string(id), "fork"), out: &page, untimed: true,
		in: wire.Fork{Count: r.Count, Labels: r.Labels, Env: r.Env, Secrets: r.Secrets},
	})
	if err != nil {
		return nil, err
	}
	list := make([]*Sandbox, len(page.Items))
	for i, s := range page.Items {
		list[i] = g.client.sandbox(s)
	}
	return list, nil
}

// Rollback makes a running or paused sandbox what a snapshot of it was; it runs then.
//
// NotFound: there is no such snapshot. Invalid: it is of another sandbox. Conflict: the
// sandbox is neither running nor paused. Unsupported: its provider cannot do that.
func (g Sandboxes) Rollback(ctx context.Context, id sandpit.ID, snapshot string) error {
	return g.client.do(ctx, call{
		method: http.MethodPost, path: path("sandboxes", string(id), "rollback"), in: wire.Rollback{Snapshot: snapshot}, untimed: true,
	})
}

// Side is one side of a comparison: a sandbox, a snapshot by its ID or name, or, if it is
// zero, the image that the other was made of.
type Side struct {
	Sandbox  sandpit.ID
	Snapshot string
}

func (s Side) String() string {
	switch {
	case s.Sandbox != "":
		return "sandbox:" + string(s.Sandbox)
	case s.Snapshot != "":
		return "snapshot:" + s.Snapshot
	default:
		return ""
	}
}

// DiffRequest asks for a comparison of files.
type DiffRequest struct {
	From, To Side
	// Patch asks for the changes of small texts, too.
	Patch bool
	// Owner is whose snapshots are meant. Default: the caller.
	Owner string
}

// Diff tells which files differ. Mounts are not looked at.
//
// Invalid: both are the image, or they were made of different images. Conflict: a sandbox
// does not run. Unsupported: its provider cannot do that. Exhausted: too many files.
func (g Sandboxes) Diff(ctx context.Context, r DiffRequest) (sandpit.FileDiff, error) {
	query := ownerQuery(r.Owner)
	for name, side := range map[string]Side{"from": r.From, "to": r.To} {
		if side != (Side{}) {
			query.Set(name, side.String())
		}
	}
	if r.Patch {
		query.Set("patch", "true")
	}
	var d sandpit.FileDiff
	err := g.client.do(ctx, call{method: http.MethodGet, path: path("diff"), query: query, out: &d, untimed: true})
	return d, err
}

// ExportSnapshot writes a snapshot as one stream, with all that it needs. After an error
// the stream is not complete. The owner "" is the caller. NotFound.
func (g Snapshots) Export(ctx context.Context, owner, name string, to io.Writer) error {
	r, err := g.client.request(ctx, http.MethodGet, path("snapshots", name, "export"), ownerQuery(owner), nil)
	if err != nil {
		return err
	}
	res, err := g.client.send(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(to, &body{res.Body, ctx})
	return err
}

// ImportRequest says what becomes of an imported snapshot.
type ImportRequest struct {
	// Name is what it is called. Default: nothing.
	Name string
	// Provider is who keeps it. Default: the server's choice.
	Provider string
	// Owner is whose it is. Default: the caller's own.
	Owner string
}

// ImportSnapshot adds what ExportSnapshot wrote, maybe elsewhere. If it fails, nothing of
// it stays. It is for administrators.
//
// PermissionDenied: the caller is none. Invalid: the name, or no such stream. AlreadyExists: the name is taken. Exhausted: no
// room. Unsupported: no such provider, or it keeps no snapshots.
func (g Snapshots) Import(ctx context.Context, req ImportRequest, from io.Reader) (sandpit.Snapshot, error) {
	query := url.Values{}
	for key, value := range map[string]string{"name": req.Name, "provider": req.Provider, "owner": req.Owner} {
		if value != "" {
			query.Set(key, value)
		}
	}
	r, err := g.client.request(ctx, http.MethodPost, path("snapshots", "import"), query, from)
	if err != nil {
		return sandpit.Snapshot{}, err
	}
	r.Header.Set("Content-Type", wire.ContentTypeSnapshot)
	res, err := g.client.send(r)
	if err != nil {
		return sandpit.Snapshot{}, err
	}
	defer res.Body.Close()
	var s sandpit.Snapshot
	return s, decode(res, &s)
}
