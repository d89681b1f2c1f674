package client

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit"
)

// Side is one side of a comparison: a sandbox, a snapshot by its ID or name or, if it is zero,
// the image of the other side.
type Side struct {
	Sandbox  sandpit.ID
	Snapshot string
}

// String returns the side as the API takes it.
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

// DiffRequest describes a comparison of files.
type DiffRequest struct {
	From, To Side
	// Patch requests the changes of small text files as well.
	Patch bool
	// Owner is the owner of the snapshots. Default: the caller.
	Owner string
}

// Diff returns which files differ. Mounts are left out.
//
// Invalid: both sides are the image, or their images differ. Conflict: a sandbox does not run.
// Unsupported: its provider cannot do that. Exhausted: too many files.
func (g Sandboxes) Diff(ctx context.Context, r DiffRequest) (sandpit.FileDiff, error) {
	query := newOwnerQuery(r.Owner)
	for name, side := range map[string]Side{"from": r.From, "to": r.To} {
		if side != (Side{}) {
			query.Set(name, side.String())
		}
	}
	if r.Patch {
		query.Set("patch", "true")
	}
	var d sandpit.FileDiff
	err := g.client.doCall(ctx, call{method: http.MethodGet, path: apiPath("diff"), query: query, out: &d, untimed: true})
	return d, err
}
