package manager

import (
	"cmp"
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
	disk      *diskUse
	events    *Events
	locks     volumeLocks
	log       *slog.Logger
	o         *Options
	sandboxes *recordIndex
	store     *store.Store
}

// volumeLocks orders the deletion of a volume and the creation of sandboxes that mount it.
type volumeLocks struct {
	mu   sync.Mutex
	busy map[sandpit.ID]bool // volumes that are being created or deleted
}

// lockVolume locks a volume and reports whether it was unlocked. The caller calls unlockVolume.
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
	// Name must be unused by the owner.
	Name string
	// Provider keeps it. Default: Options.Provider.
	Provider string
}

// Create creates a volume, which exists until it is deleted. It continues if the caller's context
// ends.
//
// Invalid: the name. AlreadyExists: the owner has a volume of that name. Exhausted: the owner's
// limit is reached, or the disk is almost full. Unsupported: no such provider, or it has no volumes.
func (vs *Volumes) Create(ctx context.Context, r VolumeRequest) (sandpit.Volume, error) {
	var made sandpit.Volume
	err := vs.withEvent(ctx, "create volume", r, func(ctx context.Context) error {
		v, err := vs.createVolume(ctx, r)
		made = toVolume(v)
		return err
	})
	return made, err
}

// withEvent runs an operation for a caller and records it as one event.
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
	keeper, err := vs.findKeeper(ctx, r.Provider)
	if err != nil {
		return store.Volume{}, err
	}
	if err := cmp.Or(vs.o.Disk.Check(), vs.disk.checkVolumes(ctx, r.Owner)); err != nil {
		return store.Volume{}, err
	}
	v := store.Volume{
		ID: sandpit.NewID(), Owner: r.Owner, Name: r.Name, Provider: r.Provider,
		State: store.VolumeCreating, CreatedAt: vs.clock.Now(),
	}
	vs.locks.lockVolume(v.ID)
	defer vs.locks.unlockVolume(v.ID)
	if v, err = vs.store.Volumes().InsertVolume(ctx, v, vs.o.MaxVolumes); err != nil {
		return v, err
	}
	make := func(ctx context.Context) error { return keeper.CreateVolume(ctx, string(v.ID)) }
	_, err = callProvider(ctx, vs.core.loops, vs.core.newCallTo(v.Provider, "create volume "+v.Name), withoutResult(make), nil)
	if err == nil {
		v.State = store.VolumeReady
		err = vs.store.Volumes().SetVolumeState(ctx, v.ID, v.State)
	}
	if err != nil { // removeUnfinished retries what cannot be removed now
		return v, errors.Join(err, vs.dropVolume(ctx, v))
	}
	return v, nil
}

// findKeeper returns the named provider's ability to keep volumes.
func (vs *Volumes) findKeeper(ctx context.Context, provider string) (sandpit.VolumeKeeper, error) {
	return findAbility[sandpit.VolumeKeeper](ctx, vs.core, provider, "volumes")
}

// dropVolume removes a volume and then its row. The caller has locked the volume.
func (vs *Volumes) dropVolume(ctx context.Context, v store.Volume) error {
	keeper, err := vs.findKeeper(ctx, v.Provider)
	if err != nil {
		return err
	}
	remove := func(ctx context.Context) error { return keeper.RemoveVolume(ctx, string(v.ID)) }
	if _, err := callProvider(ctx, vs.core.loops, vs.core.newCallTo(v.Provider, "remove volume "+v.Name), withoutResult(remove), nil); err != nil {
		return err
	}
	vs.disk.volumes.dropSize(v.ID)
	err = vs.store.Volumes().DeleteVolume(ctx, v.ID)
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	return err
}

// Get returns an owner's volume with its sandboxes, and with its size if that is known. NotFound.
func (vs *Volumes) Get(ctx context.Context, owner, name string) (sandpit.Volume, error) {
	v, err := vs.store.Volumes().Volume(ctx, owner, name)
	if err != nil {
		return sandpit.Volume{}, err
	}
	seen := toVolume(v)
	seen.Sandboxes = vs.findUsers(owner, name)
	if v.State != store.VolumeReady {
		return seen, nil
	}
	size, err := vs.measureVolume(ctx, v)
	switch {
	case err == nil:
		seen.Size = &size
	case errors.Is(err, sandpit.NotFound):
		return seen, sandpit.Errorf(sandpit.Gone, "volume %s is gone: the provider no longer has it", name)
	case ctx.Err() != nil:
		return seen, context.Cause(ctx)
	default:
		vs.log.DebugContext(ctx, "manager: volume size unknown", slog.String("volume", name), slog.Any("error", err))
	}
	return seen, nil
}

// measureVolume returns the size of a volume in bytes. Unsupported: its provider is not configured.
func (vs *Volumes) measureVolume(ctx context.Context, v store.Volume) (int64, error) {
	keeper, err := vs.findKeeper(ctx, v.Provider)
	if err != nil {
		return 0, err
	}
	measure := func(ctx context.Context) (int64, error) { return keeper.VolumeSize(ctx, string(v.ID)) }
	return callProvider(ctx, vs.core.loops, vs.core.newCallTo(v.Provider, "measure volume "+v.Name), measure, nil)
}

// List returns volumes in the order of their IDs, and the ID of each.
func (vs *Volumes) List(ctx context.Context, f store.VolumeFilter) ([]sandpit.Volume, []sandpit.ID, error) {
	rows, err := vs.store.Volumes().ListVolumes(ctx, f)
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

// Delete removes a volume with all of its files. It continues if the caller's context ends. What
// cannot be removed is retried later; another call retries at once.
//
// NotFound: there is no such volume. Conflict: a sandbox mounts it, or it is being created or
// deleted.
func (vs *Volumes) Delete(ctx context.Context, owner, name string) error {
	return vs.withEvent(ctx, "delete volume", VolumeRequest{Owner: owner, Name: name}, func(ctx context.Context) error {
		v, err := vs.store.Volumes().Volume(ctx, owner, name)
		if err != nil {
			return err
		}
		if !vs.locks.lockVolume(v.ID) {
			return sandpit.Errorf(sandpit.Conflict, "volume %s is being created or deleted", name)
		}
		defer vs.locks.unlockVolume(v.ID)
		if err := vs.markDeleting(ctx, v); err != nil {
			return err
		}
		return vs.dropVolume(ctx, v)
	})
}

// markDeleting writes that a volume is being deleted; no new sandbox can mount it then.
func (vs *Volumes) markDeleting(ctx context.Context, v store.Volume) error {
	vs.locks.mu.Lock()
	defer vs.locks.mu.Unlock()
	if users := vs.findUsers(v.Owner, v.Name); len(users) > 0 {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "volume %s is mounted in sandbox %s", v.Name, users[0]),
			"delete its sandboxes first")
	}
	return vs.store.Volumes().SetVolumeState(ctx, v.ID, store.VolumeDeleting)
}

// findUsers returns the sandboxes that mount a volume, or may still mount it.
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

// checkVolumes checks that a sandbox, which is in the index already, may mount its volumes. From
// then on they cannot be deleted.
//
// NotFound: there is no such volume. Invalid: another provider keeps it. Exhausted: the owner's
// volumes are too large, or the disk is almost full.
func (vs *Volumes) checkVolumes(ctx context.Context, r store.Row) error {
	vs.locks.mu.Lock()
	defer vs.locks.mu.Unlock()
	_, err := vs.resolveMounts(ctx, r, r.Spec.Clone())
	return cmp.Or(err, vs.disk.checkVolumeWriter(ctx, r))
}

// resolveMounts replaces the names of volumes in a spec by those that the provider knows.
func (vs *Volumes) resolveMounts(ctx context.Context, r store.Row, spec sandpit.Spec) (sandpit.Spec, error) {
	for i, mount := range spec.Mounts {
		if err := mount.CheckSource(); err != nil {
			return spec, err
		}
		if mount.Volume == "" {
			continue
		}
		v, err := vs.store.Volumes().Volume(ctx, r.Lease.Owner, mount.Volume)
		switch {
		case errors.Is(err, sandpit.NotFound), err == nil && v.State != store.VolumeReady:
			return spec, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "volume %s not found", mount.Volume),
				"create it first: sandpit volume create "+mount.Volume)
		case err != nil:
			return spec, err
		case v.Provider != r.Provider:
			return spec, sandpit.Errorf(sandpit.Invalid, "volume %s is kept by provider %s, but the sandbox uses provider %s",
				mount.Volume, v.Provider, r.Provider)
		}
		spec.Mounts[i].Volume = string(v.ID)
	}
	return spec, nil
}

// removeIfUnfinished removes a volume, unless its creation or deletion was finished since it was
// listed. The caller has locked the volume.
func (vs *Volumes) removeIfUnfinished(ctx context.Context, v store.Volume) error {
	now, err := vs.store.Volumes().Volume(ctx, v.Owner, v.Name)
	if errors.Is(err, sandpit.NotFound) || err == nil && (now.ID != v.ID || now.State == store.VolumeReady) {
		return errNothingToDo
	}
	if err != nil {
		return err
	}
	return vs.dropVolume(ctx, v)
}

// removeUnfinished removes volumes whose creation or deletion was interrupted, by the end of the
// server or an error of the provider.
func (vs *Volumes) removeUnfinished(ctx context.Context) {
	rows, err := vs.store.Volumes().ListVolumes(ctx, store.VolumeFilter{All: true, Unfinished: true})
	if err != nil {
		if ctx.Err() == nil {
			vs.log.WarnContext(ctx, "manager: volumes not listed", slog.Any("error", err))
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
