package manager

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// volumes orders what happens to volumes: the decision to delete one, and that of a
// sandbox to have it.
type volumes struct {
	mu   sync.Mutex
	busy map[sandpit.ID]bool // those that somebody makes or deletes
}

// begin marks a volume, unless it is marked; who marks it calls end.
func (v *volumes) begin(id sandpit.ID) bool {
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

func (v *volumes) end(id sandpit.ID) {
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

// CreateVolume makes a volume, which stays until it is deleted. It goes on when the
// caller gives up.
//
// Invalid: the name. AlreadyExists: the owner has one of that name. Exhausted: the
// owner has as many as there may be. Unsupported: no such provider, or it keeps no
// volumes.
func (m *Manager) CreateVolume(ctx context.Context, r VolumeRequest) (sandpit.Volume, error) {
	var made sandpit.Volume
	err := m.withVolume(ctx, "create volume", r, func(ctx context.Context) error {
		v, err := m.createVolume(ctx, r)
		made = told(v)
		return err
	})
	return made, err
}

// withVolume does something for a caller, as one event.
func (m *Manager) withVolume(ctx context.Context, action string, r VolumeRequest, do func(context.Context) error) error {
	begin := time.Now()
	if m.closing.Load() || !m.ops.begin() {
		return errClosed
	}
	defer m.ops.end()
	actor := actorOf(ctx, r.Owner)
	detached, cancel := m.ops.detach(ctx)
	defer cancel()
	err := do(detached)
	m.record(Report{
		Actor: actor, Action: action, Args: map[string]string{"volume": r.Name, "owner": r.Owner}, Err: err, Took: time.Since(begin),
	})
	return err
}

func (m *Manager) createVolume(ctx context.Context, r VolumeRequest) (store.Volume, error) {
	if err := sandpit.CheckVolumeName(r.Name); err != nil {
		return store.Volume{}, err
	}
	if r.Provider == "" {
		r.Provider = m.o.Provider
	}
	keeper, err := m.keeper(r.Provider)
	if err != nil {
		return store.Volume{}, err
	}
	v := store.Volume{
		ID: sandpit.NewID(), Owner: r.Owner, Name: r.Name, Provider: r.Provider,
		State: store.VolumeCreating, CreatedAt: m.o.Clock.Now(),
	}
	m.volumes.begin(v.ID)
	defer m.volumes.end(v.ID)
	if v, err = m.o.Store.InsertVolume(ctx, v, max(0, m.o.MaxVolumes)); err != nil {
		return v, err
	}
	make := func(ctx context.Context) error { return keeper.CreateVolume(ctx, string(v.ID)) }
	_, err = call(ctx, m.loops, m.remote("create volume "+v.Name), none(make), nil)
	if err == nil {
		v.State = store.VolumeReady
		err = m.o.Store.SetVolumeState(ctx, v.ID, v.State)
	}
	if err != nil { // what cannot be taken back now is tried again by tidyVolumes
		return v, errors.Join(err, m.dropVolume(ctx, v))
	}
	return v, nil
}

// keeper returns the provider of a name that keeps volumes.
func (m *Manager) keeper(provider string) (sandpit.VolumeKeeper, error) {
	p := m.o.Providers[provider]
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
func (m *Manager) dropVolume(ctx context.Context, v store.Volume) error {
	keeper, err := m.keeper(v.Provider)
	if err != nil {
		return err
	}
	remove := func(ctx context.Context) error { return keeper.RemoveVolume(ctx, string(v.ID)) }
	if _, err := call(ctx, m.loops, m.remote("remove volume "+v.Name), none(remove), nil); err != nil {
		return err
	}
	err = m.o.Store.DeleteVolume(ctx, v.ID)
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	return err
}

// Volume returns an owner's volume, with its size if that is known, and who has it.
// NotFound.
func (m *Manager) Volume(ctx context.Context, owner, name string) (sandpit.Volume, error) {
	v, err := m.o.Store.Volume(ctx, owner, name)
	if err != nil {
		return sandpit.Volume{}, err
	}
	seen := told(v)
	seen.Sandboxes = m.haveVolume(owner, name)
	keeper, err := m.keeper(v.Provider)
	if err != nil || v.State != store.VolumeReady {
		return seen, nil //nolint:nilerr // a provider that is not there now has it all the same
	}
	count := func(ctx context.Context) (int64, error) { return keeper.VolumeSize(ctx, string(v.ID)) }
	size, err := call(ctx, m.loops, m.remote("count the bytes of volume "+name), count, nil)
	switch {
	case err == nil:
		seen.Size = &size
	case errors.Is(err, sandpit.NotFound):
		return seen, sandpit.Errorf(sandpit.Gone, "volume %s is gone: the provider has it no more", name)
	case ctx.Err() != nil:
		return seen, context.Cause(ctx)
	default:
		m.o.Log.DebugContext(ctx, "the size of a volume is not known", slog.String("volume", name), slog.Any("error", err))
	}
	return seen, nil
}

// Volumes returns volumes in the order of their IDs, and the ID of each.
func (m *Manager) Volumes(ctx context.Context, f store.VolumeFilter) ([]sandpit.Volume, []sandpit.ID, error) {
	rows, err := m.o.Store.Volumes(ctx, f)
	if err != nil {
		return nil, nil, err
	}
	list, ids := make([]sandpit.Volume, len(rows)), make([]sandpit.ID, len(rows))
	for i, v := range rows {
		list[i], ids[i] = told(v), v.ID
	}
	return list, ids, nil
}

func told(v store.Volume) sandpit.Volume {
	return sandpit.Volume{Name: v.Name, Owner: v.Owner, Provider: v.Provider, CreatedAt: v.CreatedAt}
}

// DeleteVolume removes a volume with all of its files. It goes on when the caller
// gives up. What cannot be removed is tried again later; who calls again tries at once.
//
// NotFound: there is none. Conflict: a sandbox has it, or somebody is about it already.
func (m *Manager) DeleteVolume(ctx context.Context, owner, name string) error {
	return m.withVolume(ctx, "delete volume", VolumeRequest{Owner: owner, Name: name}, func(ctx context.Context) error {
		v, err := m.o.Store.Volume(ctx, owner, name)
		if err != nil {
			return err
		}
		if !m.volumes.begin(v.ID) {
			return sandpit.Errorf(sandpit.Conflict, "volume %s is being made or deleted", name)
		}
		defer m.volumes.end(v.ID)
		if err := m.condemnVolume(ctx, v); err != nil {
			return err
		}
		return m.dropVolume(ctx, v)
	})
}

// condemnVolume decides that a volume is to be deleted: from now on no sandbox gets it.
func (m *Manager) condemnVolume(ctx context.Context, v store.Volume) error {
	m.volumes.mu.Lock()
	defer m.volumes.mu.Unlock()
	if users := m.haveVolume(v.Owner, v.Name); len(users) > 0 {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "volume %s: sandbox %s has it", v.Name, users[0]),
			"delete its sandboxes first")
	}
	return m.o.Store.SetVolumeState(ctx, v.ID, store.VolumeDeleting)
}

// haveVolume returns the sandboxes that have a volume, or may get it yet.
func (m *Manager) haveVolume(owner, name string) []sandpit.ID {
	var ids []sandpit.ID
	for _, b := range m.boxes.all() {
		row := b.look()
		if row.Lease.Owner != owner || row.State == sandpit.StateDeleted {
			continue
		}
		if slices.ContainsFunc(row.Spec.Mounts, func(m sandpit.Mount) bool { return m.Volume == name }) {
			ids = append(ids, b.id)
		}
	}
	return ids
}

// admitVolumes sees that a sandbox, which is in the index by now, may have its volumes.
// From then on they stay.
//
// NotFound: there is no such volume. Invalid: another provider keeps it.
func (m *Manager) admitVolumes(ctx context.Context, r store.Row) error {
	m.volumes.mu.Lock()
	defer m.volumes.mu.Unlock()
	_, err := m.bound(ctx, r)
	return err
}

// bound returns the spec of a sandbox with the volumes as the provider calls them.
func (m *Manager) bound(ctx context.Context, r store.Row) (sandpit.Spec, error) {
	spec := m.specFor(r)
	for i, mount := range spec.Mounts {
		if err := mount.CheckSource(); err != nil {
			return spec, err
		}
		if mount.Volume == "" {
			continue
		}
		v, err := m.o.Store.Volume(ctx, r.Lease.Owner, mount.Volume)
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

// tidyVolume removes a volume, unless somebody has come to the end with it since it was
// listed. Who calls has marked it.
func (m *Manager) tidyVolume(ctx context.Context, v store.Volume) error {
	now, err := m.o.Store.Volume(ctx, v.Owner, v.Name)
	if errors.Is(err, sandpit.NotFound) || err == nil && (now.ID != v.ID || now.State == store.VolumeReady) {
		return errNothing
	}
	if err != nil {
		return err
	}
	return m.dropVolume(ctx, v)
}

// tidyVolumes removes volumes that were half made or half deleted when the server
// ended, or whose provider did not answer.
func (m *Manager) tidyVolumes(ctx context.Context) {
	rows, err := m.o.Store.Volumes(ctx, store.VolumeFilter{All: true, Unfinished: true})
	if err != nil {
		if ctx.Err() == nil {
			m.o.Log.WarnContext(ctx, "the volumes cannot be looked through", slog.Any("error", err))
		}
		return
	}
	for _, v := range rows {
		if ctx.Err() != nil || !m.volumes.begin(v.ID) {
			continue
		}
		err := m.tidyVolume(ctx, v)
		m.volumes.end(v.ID)
		if errors.Is(err, errNothing) {
			continue
		}
		m.record(Report{
			Actor: actorManager, Action: "remove volume", Args: map[string]string{"volume": v.Name, "owner": v.Owner}, Err: err,
		})
	}
}
