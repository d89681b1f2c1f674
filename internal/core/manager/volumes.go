package manager

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Volumes are the volumes of all owners. All methods may be called concurrently.
type Volumes struct {
	clock     clock.Clock
	core      *core
	events    *Events
	locks     volumeLocks
	log       *slog.Logger
	o         *Options
	sandboxes *recordIndex
	store     *store.Store
}

// volumeLocks orders what happens to volumes: the decision to delete one, and that of a
// sandbox to have it.
type volumeLocks struct {
	mu   sync.Mutex
	busy map[sandpit.ID]bool // those that somebody makes or deletes
}

// lockVolume marks a volume, unless it is marked; who marks it calls end.
func (v *volumeLocks) lockVolume(id sandpit.ID) bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.busy[id] {
		return false
	}
	if v.busy == nil {
		v.busy = make(map[sandpit.ID]bool)
	}
	v.busy[id] = true
	return true
}

func (v *volumeLocks) unlockVolume(id sandpit.ID) {
	v.mu.Lock()
	defer v.mu.Unlock()
	delete(v.busy, id)
}

// VolumeRequest asks for a volume.
type VolumeRequest struct {
	Owner string
	// Name is one that the owner has not given yet.
	Name string
	// Provider keeps it. Default: Options.Provider.
	Provider string
}

// Create makes a volume, which stays until it is deleted. It goes on when the
// caller gives up.
//
// Invalid: the name. AlreadyExists: the owner has one of that name. Exhausted: the
// owner has as many as there may be. Unsupported: no such provider, or it keeps no
// volumes.
func (vs *Volumes) Create(ctx context.Context, r VolumeRequest) (sandpit.Volume, error) {
	var made sandpit.Volume
	err := vs.withEvent(ctx, "create volume", r, func(ctx context.Context) error {
		v, err := vs.createVolume(ctx, r)
		made = toVolume(v)
		return err
	})
	return made, err
}

// withEvent does something for a caller, as one event.
func (vs *Volumes) withEvent(ctx context.Context, action string, r VolumeRequest, do func(context.Context) error) error {
	begin := time.Now()
	if vs.core.closing.Load() || !vs.core.ops.begin() {
		return errClosed
	}
	defer vs.core.ops.end()
	actor := actorOf(ctx, r.Owner)
	detached, cancel := vs.core.ops.detach(ctx)
	defer cancel()
	err := do(detached)
	vs.events.Record(Report{
		Actor: actor, Action: action, Args: map[string]string{"volume": r.Name, "owner": r.Owner}, Err: err, Took: time.Since(begin),
	})
	return err
}

func (vs *Volumes) createVolume(ctx context.Context, r VolumeRequest) (store.Volume, error) {
	if err := sandpit.CheckVolumeName(r.Name); err != nil {
		return store.Volume{}, err
	}
	if r.Provider == "" {
		r.Provider = vs.o.Provider
	}
	keeper, err := vs.findKeeper(r.Provider)
	if err != nil {
		return store.Volume{}, err
	}
	v := store.Volume{
		ID: sandpit.NewID(), Owner: r.Owner, Name: r.Name, Provider: r.Provider,
		State: store.VolumeCreating, CreatedAt: vs.clock.Now(),
	}
	vs.locks.lockVolume(v.ID)
	defer vs.locks.unlockVolume(v.ID)
	if v, err = vs.store.InsertVolume(ctx, v, max(0, vs.o.MaxVolumes)); err != nil {
		return v, err
	}
	make := func(ctx context.Context) error { return keeper.CreateVolume(ctx, string(v.ID)) }
	_, err = callProvider(ctx, vs.core.loops, vs.core.newCall("create volume "+v.Name), withoutResult(make), nil)
	if err == nil {
		v.State = store.VolumeReady
		err = vs.store.SetVolumeState(ctx, v.ID, v.State)
	}
	if err != nil { // what cannot be taken back now is tried again by tidyVolumes
		return v, errors.Join(err, vs.dropVolume(ctx, v))
	}
	return v, nil
}

// findKeeper returns the provider of a name that keeps volumes.
func (vs *Volumes) findKeeper(provider string) (sandpit.VolumeKeeper, error) {
	p := vs.o.Providers[provider]
	if p == nil {
		return nil, sandpit.Errorf(sandpit.Unsupported, "Unsupported provider type: %.100q", provider)
	}
	keeper, ok := sandpit.As[sandpit.VolumeKeeper](p)
	if !ok {
		return nil, sandpit.Errorf(sandpit.Unsupported, "provider %s keeps no volumes", provider)
	}
	return keeper, nil
}

// dropVolume removes a volume and then its row. Who calls has marked it.
func (vs *Volumes) dropVolume(ctx context.Context, v store.Volume) error {
	keeper, err := vs.findKeeper(v.Provider)
	if err != nil {
		return err
	}
	remove := func(ctx context.Context) error { return keeper.RemoveVolume(ctx, string(v.ID)) }
	if _, err := callProvider(ctx, vs.core.loops, vs.core.newCall("remove volume "+v.Name), withoutResult(remove), nil); err != nil {
		return err
	}
	err = vs.store.DeleteVolume(ctx, v.ID)
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	return err
}

// Get returns an owner's volume, with its size if that is known, and who has it.
// NotFound.
func (vs *Volumes) Get(ctx context.Context, owner, name string) (sandpit.Volume, error) {
	v, err := vs.store.Volume(ctx, owner, name)
	if err != nil {
		return sandpit.Volume{}, err
	}
	seen := toVolume(v)
	seen.Sandboxes = vs.findUsers(owner, name)
	keeper, err := vs.findKeeper(v.Provider)
	if err != nil || v.State != store.VolumeReady {
		return seen, nil //nolint:nilerr // a provider that is not there now has it all the same
	}
	count := func(ctx context.Context) (int64, error) { return keeper.VolumeSize(ctx, string(v.ID)) }
	size, err := callProvider(ctx, vs.core.loops, vs.core.newCall("count the bytes of volume "+name), count, nil)
	switch {
	case err == nil:
		seen.Size = &size
	case errors.Is(err, sandpit.NotFound):
		return seen, sandpit.Errorf(sandpit.Gone, "volume %s is gone: the provider has it no more", name)
	case ctx.Err() != nil:
		return seen, context.Cause(ctx)
	default:
		vs.log.DebugContext(ctx, "the size of a volume is not known", slog.String("volume", name), slog.Any("error", err))
	}
	return seen, nil
}

// List returns volumes in the order of their IDs, and the ID of each.
func (vs *Volumes) List(ctx context.Context, f store.VolumeFilter) ([]sandpit.Volume, []sandpit.ID, error) {
	rows, err := vs.store.Volumes(ctx, f)
	if err != nil {
		return nil, nil, err
	}
	list, ids := make([]sandpit.Volume, len(rows)), make([]sandpit.ID, len(rows))
	for i, v := range rows {
		list[i], ids[i] = toVolume(v), v.ID
	}
	return list, ids, nil
}

func toVolume(v store.Volume) sandpit.Volume {
	return sandpit.Volume{Name: v.Name, Owner: v.Owner, Provider: v.Provider, CreatedAt: v.CreatedAt}
}

// Delete removes a volume with all of its files. It goes on when the caller
// gives up. What cannot be removed is tried again later; who calls again tries at once.
//
// NotFound: there is none. Conflict: a sandbox has it, or somebody is about it already.
func (vs *Volumes) Delete(ctx context.Context, owner, name string) error {
	return vs.withEvent(ctx, "delete volume", VolumeRequest{Owner: owner, Name: name}, func(ctx context.Context) error {
		v, err := vs.store.Volume(ctx, owner, name)
		if err != nil {
			return err
		}
		if !vs.locks.lockVolume(v.ID) {
			return sandpit.Errorf(sandpit.Conflict, "volume %s is being made or deleted", name)
		}
		defer vs.locks.unlockVolume(v.ID)
		if err := vs.markDeleting(ctx, v); err != nil {
			return err
		}
		return vs.dropVolume(ctx, v)
	})
}

// markDeleting decides that a volume is to be deleted: from now on no sandbox gets it.
func (vs *Volumes) markDeleting(ctx context.Context, v store.Volume) error {
	vs.locks.mu.Lock()
	defer vs.locks.mu.Unlock()
	if users := vs.findUsers(v.Owner, v.Name); len(users) > 0 {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "volume %s: sandbox %s has it", v.Name, users[0]),
			"delete its sandboxes first")
	}
	return vs.store.SetVolumeState(ctx, v.ID, store.VolumeDeleting)
}

// findUsers returns the sandboxes that have a volume, or may get it yet.
func (vs *Volumes) findUsers(owner, name string) []sandpit.ID {
	var ids []sandpit.ID
	for _, rec := range vs.sandboxes.all() {
		row := rec.currentRow()
		if row.Lease.Owner != owner || row.State == sandpit.StateDeleted {
			continue
		}
		if slices.ContainsFunc(row.Spec.Mounts, func(m sandpit.Mount) bool { return m.Volume == name }) {
			ids = append(ids, rec.id)
		}
	}
	return ids
}

// checkVolumes sees that a sandbox, which is in the index by now, may have its volumes.
// From then on they stay.
//
// NotFound: there is no such volume. Invalid: another provider keeps it.
func (vs *Volumes) checkVolumes(ctx context.Context, r store.Row) error {
	vs.locks.mu.Lock()
	defer vs.locks.mu.Unlock()
	_, err := vs.resolveMounts(ctx, r, r.Spec.Clone())
	return err
}

// resolveMounts returns the spec of a sandbox with the volumes as the provider calls them.
func (vs *Volumes) resolveMounts(ctx context.Context, r store.Row, spec sandpit.Spec) (sandpit.Spec, error) {
	for i, mount := range spec.Mounts {
		if err := mount.CheckSource(); err != nil {
			return spec, err
		}
		if mount.Volume == "" {
			continue
		}
		v, err := vs.store.Volume(ctx, r.Lease.Owner, mount.Volume)
		switch {
		case errors.Is(err, sandpit.NotFound), err == nil && v.State != store.VolumeReady:
			return spec, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "there is no volume %s", mount.Volume),
				"make it first: sandpit volume create "+mount.Volume)
		case err != nil:
			return spec, err
		case v.Provider != r.Provider:
			return spec, sandpit.Errorf(sandpit.Invalid, "volume %s is kept by provider %s, and the sandbox is to be made by %s",
				mount.Volume, v.Provider, r.Provider)
		}
		spec.Mounts[i].Volume = string(v.ID)
	}
	return spec, nil
}

// removeIfUnfinished removes a volume, unless somebody has come to the end with it since it was
// listed. Who calls has marked it.
func (vs *Volumes) removeIfUnfinished(ctx context.Context, v store.Volume) error {
	now, err := vs.store.Volume(ctx, v.Owner, v.Name)
	if errors.Is(err, sandpit.NotFound) || err == nil && (now.ID != v.ID || now.State == store.VolumeReady) {
		return errNothingToDo
	}
	if err != nil {
		return err
	}
	return vs.dropVolume(ctx, v)
}

// removeUnfinished removes volumes that were half made or half deleted when the server
// ended, or whose provider did not answer.
func (vs *Volumes) removeUnfinished(ctx context.Context) {
	rows, err := vs.store.Volumes(ctx, store.VolumeFilter{All: true, Unfinished: true})
	if err != nil {
		if ctx.Err() == nil {
			vs.log.WarnContext(ctx, "the volumes cannot be looked through", slog.Any("error", err))
		}
		return
	}
	for _, v := range rows {
		if ctx.Err() != nil || !vs.locks.lockVolume(v.ID) {
			continue
		}
		err := vs.removeIfUnfinished(ctx, v)
		vs.locks.unlockVolume(v.ID)
		if errors.Is(err, errNothingToDo) {
			continue
		}
		vs.events.Record(Report{
			Actor: actorManager, Action: "remove volume", Args: map[string]string{"volume": v.Name, "owner": v.Owner}, Err: err,
		})
	}
}
