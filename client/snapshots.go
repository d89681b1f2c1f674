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

// Create saves a running or paused sandbox, which keeps running. The name may be "". Sandboxes
// with the image "snapshot:" and its ID or name begin in this state.
//
// Invalid: the name. AlreadyExists: the name is taken. Conflict: the sandbox is neither running
// nor paused. Exhausted: the number or size of snapshots is at its limit. Unsupported: its
// provider cannot do that.
func (g Snapshots) Create(ctx context.Context, id sandpit.ID, name string) (sandpit.Snapshot, error) {
	var s sandpit.Snapshot
	err := g.client.doCall(ctx, call{
		method: http.MethodPost, path: apiPath("snapshots"), in: wire.NewSnapshot{Sandbox: id, Name: name}, out: &s, untimed: true,
	})
	return s, err
}

// SnapshotFilter selects snapshots. Zero fields select all that the caller may see.
type SnapshotFilter struct {
	Owner string
	// Sandbox is the sandbox that was saved.
	Sandbox sandpit.ID
	// Limit bounds the number of results. Default: all.
	Limit int
}

// List returns snapshots in the order of their IDs.
func (g Snapshots) List(ctx context.Context, f SnapshotFilter) ([]sandpit.Snapshot, error) {
	query := newOwnerQuery(f.Owner)
	if f.Sandbox != "" {
		query.Set("sandbox", string(f.Sandbox))
	}
	return listPages[sandpit.Snapshot](ctx, g.client, apiPath("snapshots"), query, f.Limit)
}

// Get returns a snapshot by its ID or name. The owner "" is the caller. NotFound.
func (g Snapshots) Get(ctx context.Context, owner, name string) (sandpit.Snapshot, error) {
	return getJSON[sandpit.Snapshot](ctx, g.client, apiPath("snapshots", name), newOwnerQuery(owner))
}

// Delete removes a snapshot; sandboxes created from it keep running. The owner "" is the caller.
//
// NotFound: no such snapshot. Conflict: it is in use.
func (g Snapshots) Delete(ctx context.Context, owner, name string) error {
	return g.client.doCall(ctx, call{method: http.MethodDelete, path: apiPath("snapshots", name), query: newOwnerQuery(owner), untimed: true})
}

// Export writes a snapshot as one stream, with everything it needs. After an error the stream is
// incomplete. The owner "" is the caller. NotFound.
func (g Snapshots) Export(ctx context.Context, owner, name string, to io.Writer) error {
	r, err := g.client.newRequest(ctx, http.MethodGet, apiPath("snapshots", name, "export"), newOwnerQuery(owner), nil)
	if err != nil {
		return err
	}
	res, err := g.client.sendRequest(r)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(to, &responseBody{res.Body, ctx})
	return err
}

// ImportRequest describes an imported snapshot. The zero value of a field means its default.
type ImportRequest struct {
	// Name is the snapshot's name. Default: none.
	Name string
	// Provider is the provider that stores it. Default: the server's choice.
	Provider string
	// Owner is the snapshot's owner. Default: the caller.
	Owner string
}

// Import adds a snapshot that Export wrote, possibly on another server. If it fails, nothing of
// it remains. It is for administrators.
//
// PermissionDenied: the caller is not an administrator. Invalid: the name or the stream.
// AlreadyExists: the name is taken. Exhausted: no space. Unsupported: no such provider, or it
// stores no snapshots.
func (g Snapshots) Import(ctx context.Context, req ImportRequest, from io.Reader) (sandpit.Snapshot, error) {
	query := url.Values{}
	for key, value := range map[string]string{"name": req.Name, "provider": req.Provider, "owner": req.Owner} {
		if value != "" {
			query.Set(key, value)
		}
	}
	r, err := g.client.newRequest(ctx, http.MethodPost, apiPath("snapshots", "import"), query, from)
	if err != nil {
		return sandpit.Snapshot{}, err
	}
	r.Header.Set("Content-Type", wire.ContentTypeSnapshot)
	res, err := g.client.sendRequest(r)
	if err != nil {
		return sandpit.Snapshot{}, err
	}
	defer res.Body.Close()
	var s sandpit.Snapshot
	return s, decodeJSON(res, &s)
}
