package e2b

import (
	"net/http"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// snapshot is one snapshot.
type snapshot struct {
	ID    string   `json:"snapshotID"`
	Names []string `json:"names"`
}

// The tags that a name without a tag means.
const (
	tagDefault = "default"
	tagLatest  = "latest"
)

func toSnapshot(n sandpit.Snapshot) snapshot {
	out := snapshot{ID: string(n.ID), Names: []string{}}
	if n.Name != "" {
		name, tag, tagged := strings.Cut(n.Name, ".")
		if !tagged {
			tag = tagDefault
		}
		out.Names = append(out.Names, name+":"+tag)
	}
	return out
}

// snapshotPattern is the form of a client's name of a snapshot. Dots are not allowed: in
// sandpit's names they separate name and tag.
var snapshotPattern = pattern.New(`^[A-Za-z0-9](?:[A-Za-z0-9_-]*[A-Za-z0-9])?(?::[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)?$`)

// snapshotName returns sandpit's name of a snapshot that a client calls NAME or NAME:TAG, with
// or without the owner.
func snapshotName(client api.Principal, name string) string {
	name = strings.TrimPrefix(name, client.Owner+"/")
	name, tag, tagged := strings.Cut(name, ":")
	if !tagged || tag == tagDefault || tag == tagLatest {
		return name
	}
	return name + "." + tag
}

// snapshotHandlers serve snapshots, and forks of sandboxes.
type snapshotHandlers struct {
	manager   *manager.Manager
	resolver  *templateResolver
	describer *describer
}

// createSnapshot creates a snapshot of a sandbox, which keeps running.
func (h *snapshotHandlers) createSnapshot(c *call) (int, any, error) {
	var in struct {
		Name string `json:"name"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	b, err := findSandbox(c, h.manager)
	if err != nil {
		return 0, nil, err
	}
	name := strings.TrimPrefix(in.Name, c.client.Owner+"/")
	if name != "" && !snapshotPattern().MatchString(name) {
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "name %.100q: want letters and digits, in between also - and _, and an optional tag after a colon", in.Name)
	}
	made, err := h.manager.Snapshots().Create(c.r.Context(), b.ID, snapshotName(c.client, name))
	if err != nil {
		return 0, nil, err
	}
	return http.StatusCreated, toSnapshot(made), nil
}

// listSnapshots lists snapshots, one page at a time.
func (h *snapshotHandlers) listSnapshots(c *call) (int, any, error) {
	query := c.r.URL.Query()
	limit, err := parseNumber(query, "limit", 100, 1, 1000)
	if err != nil {
		return 0, nil, err
	}
	sandbox, _, _ := strings.Cut(query.Get("sandboxID"), "-")
	f := store.SnapshotFilter{Owner: c.client.Owner, Sandbox: sandpit.ID(sandbox), After: sandpit.SnapshotID(query.Get("nextToken")), Limit: limit + 1}
	if f.After != "" && f.After.Validate() != nil {
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "invalid nextToken")
	}
	list := []snapshot{}
	if name := query.Get("name"); name != "" {
		found, err := h.resolver.findSnapshot(c.r.Context(), c.client, name)
		switch {
		case sandpit.CodeOf(err) == sandpit.NotFound:
		case err != nil:
			return 0, nil, err
		case f.Sandbox == "" || found.Sandbox == f.Sandbox:
			list = append(list, toSnapshot(found))
		}
		return http.StatusOK, list, nil
	}
	all, err := h.manager.Snapshots().List(c.r.Context(), f)
	if err != nil {
		return 0, nil, err
	}
	if len(all) > limit {
		all = all[:limit]
		c.w.Header().Set("X-Next-Token", string(all[limit-1].ID))
	}
	for _, n := range all {
		list = append(list, toSnapshot(n))
	}
	return http.StatusOK, list, nil
}

// forkResult is a fork of a sandbox, or the error.
type forkResult struct {
	Sandbox *sandbox `json:"sandbox,omitempty"`
	Error   *problem `json:"error,omitempty"`
}

// forkSandbox creates forks of a sandbox, independently of each other.
func (h *snapshotHandlers) forkSandbox(c *call) (int, any, error) {
	var in struct {
		Timeout *int64 `json:"timeout"`
		Count   *int64 `json:"count"`
	}
	if err := c.readBody(&in); err != nil {
		return 0, nil, err
	}
	count := int64(1)
	if in.Count != nil {
		count = *in.Count
	}
	if count < 1 || count > manager.MaxForks {
		return 0, nil, sandpit.Errorf(sandpit.Invalid, "count %d: want 1 to %d", count, manager.MaxForks)
	}
	timeout, err := parseSeconds("timeout", in.Timeout, defaultTimeout, 1)
	if err != nil {
		return 0, nil, err
	}
	b, err := findSandbox(c, h.manager)
	if err != nil {
		return 0, nil, err
	}
	ctx := c.r.Context()
	m, _ := markOf(b)
	all, err := h.manager.Snapshots().ForkEach(ctx, manager.ForkRequest{
		// They must not end while they are being created.
		Sandbox: b.ID, Count: int(count), Lease: sandpit.Lease{Deadline: time.Now().Add(timeout + createTime), Action: m.Timeout},
	})
	if err != nil {
		return 0, nil, err
	}
	list := make([]forkResult, len(all))
	for k, made := range all {
		var out sandbox
		if made.Err == nil {
			made.Err = setLease(ctx, h.manager, made.Sandbox, timeout, m.Timeout)
		}
		if made.Err == nil {
			out, made.Err = h.describer.toSandbox(ctx, made.Sandbox)
		}
		if made.Err != nil {
			list[k].Error = new(problemOf(ctx, made.Err))
			continue
		}
		list[k].Sandbox = &out
	}
	return http.StatusCreated, list, nil
}
