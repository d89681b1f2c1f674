package manager

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// MaxForks is how many sandboxes one fork makes at most.
const MaxForks = 100

// ForkRequest asks for copies of a sandbox. The zero value of a field means the default
// stated with it.
type ForkRequest struct {
	Sandbox sandpit.ID
	// Count is how many. Default: 1. At most MaxForks.
	Count int
	// Labels and Env are added to those of the sandbox, and go before them. Environment
	// is for commands that are started from then on.
	Labels, Env map[string]string
	// Secrets are those of the copies, which do not have the sandbox's. Default: none.
	Secrets map[string]string
	// Lease is when they end, and how. Default: when the sandbox does.
	Lease sandpit.Lease
}

// Copy is one sandbox that ForkEach was to make.
type Copy struct {
	Sandbox sandpit.Sandbox
	// Err is why there is none.
	Err error
}

// Fork makes copies of a running or paused sandbox, which goes on. They have its lease,
// policy, labels and environment, and neither its name nor its published ports. Either
// all are made, or those that were are deleted.
//
// Errors are those of Snapshot, and of Create.
func (m *Manager) Fork(ctx context.Context, r ForkRequest) (made []sandpit.Sandbox, err error) {
	err = m.fork(ctx, r, func(r ForkRequest, n store.Snapshot, parent store.Row) (err error) {
		made, err = m.copies(ctx, r, n, parent)
		return err
	})
	return made, err
}

// ForkEach is Fork, and each copy is made or not without regard to the others. The error
// is why none was tried.
func (m *Manager) ForkEach(ctx context.Context, r ForkRequest) (all []Copy, err error) {
	err = m.fork(ctx, r, func(r ForkRequest, n store.Snapshot, parent store.Row) error {
		now, err := m.now(ctx)
		if err != nil {
			return err
		}
		request := forkOf(r, n, parent, now)
		all = make([]Copy, r.Count)
		var group sync.WaitGroup
		for k := range all {
			group.Go(func() { all[k].Sandbox, all[k].Err = m.Create(ctx, request) })
		}
		group.Wait()
		return nil
	})
	return all, err
}

// fork saves a sandbox for as long as copies of it are made.
func (m *Manager) fork(ctx context.Context, r ForkRequest, multiply func(ForkRequest, store.Snapshot, store.Row) error) error {
	r.Count = max(r.Count, 0)
	if r.Count == 0 {
		r.Count = 1
	}
	if r.Count > MaxForks {
		return sandpit.Errorf(sandpit.Invalid, "fork: %d copies, want at most %d", r.Count, MaxForks)
	}
	b, err := m.boxes.known(r.Sandbox)
	if err != nil {
		return err
	}
	if m.closing.Load() || !m.ops.begin() {
		return errClosed
	}
	defer m.ops.end()
	slot, err := acquire(ctx, m.slots.forks, b.look().Lease.Owner)
	if err != nil {
		return err
	}
	defer slot.Release()
	n := store.Snapshot{ID: sandpit.NewSnapshotID(), Brief: true}
	if err := b.take(ctx); err != nil {
		return err
	}
	// The caller waits also after having given up: somebody must remove the snapshot.
	args := map[string]string{"snapshot": string(n.ID), "count": strconv.Itoa(r.Count)}
	var parent store.Row
	err = m.stride(ctx, b, m.logged("fork", args, func(ctx context.Context, b *box) error {
		parent = b.look()
		var err error
		if n, err = m.save(ctx, b, n); err != nil {
			m.snapshots.end(n.ID)
			return err
		}
		m.snapshots.keep(n.ID)
		return nil
	}))
	b.yield()
	if err != nil {
		return err
	}
	defer m.dropBrief(ctx, n)
	return multiply(r, n, parent)
}

// copies makes sandboxes of a snapshot: all or none.
func (m *Manager) copies(ctx context.Context, r ForkRequest, n store.Snapshot, parent store.Row) ([]sandpit.Sandbox, error) {
	now, err := m.now(ctx)
	if err != nil {
		return nil, err
	}
	request := forkOf(r, n, parent, now)
	made := make([]sandpit.Sandbox, r.Count)
	all, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var group sync.WaitGroup
	for k := range made {
		group.Go(func() {
			s, err := m.Create(all, request)
			if err != nil {
				cancel(err) // nobody wants the others either
				return
			}
			made[k] = s
		})
	}
	group.Wait()
	if err = context.Cause(all); err == nil {
		return made, nil
	}
	made = slices.DeleteFunc(made, func(s sandpit.Sandbox) bool { return s.ID == "" })
	away, end := m.ops.detach(ctx)
	defer end()
	each(m.o.Parallel, made, func(s sandpit.Sandbox) {
		if err := m.Delete(away, s.ID); err != nil { // it is tried again later, and told
			m.o.Log.WarnContext(away, "a copy that nobody needs is left till later", slog.String("sandbox", string(s.ID)), slog.Any("error", err))
		}
	})
	return nil, err
}

// forkOf is the request for a copy of a sandbox.
func forkOf(r ForkRequest, n store.Snapshot, parent store.Row, now time.Time) CreateRequest {
	spec := parent.Spec.Clone()
	spec.Name, spec.Ports, spec.Image = "", nil, sandpit.SnapshotImage(n.ID)
	add := func(to *map[string]string, more map[string]string) {
		if *to == nil {
			*to = make(map[string]string, len(more))
		}
		maps.Copy(*to, more)
	}
	add(&spec.Labels, r.Labels)
	add(&spec.Env, r.Env)
	policy := parent.Policy
	if policy.IdleTimeout == 0 {
		policy.IdleTimeout = -1 // never, which is not the default
	}
	lease := sandpit.Lease{Deadline: parent.Lease.Deadline, Action: parent.Lease.Action}
	term := parent.Term
	switch {
	case !r.Lease.Deadline.IsZero():
		lease, term = r.Lease, 0
	case !lease.Deadline.After(now): // it is paused because of it, and the copies run
		again := renewed(parent, now)
		lease = sandpit.Lease{Deadline: again.Deadline, Action: again.Action}
	}
	return CreateRequest{
		Owner: n.Owner, Provider: n.Provider, Spec: spec, Secrets: r.Secrets, Policy: policy, Lease: lease, Endless: lease.Deadline.IsZero(),
		image: &parent.Spec.Image, prepared: parent.Prepared, trusted: parent.Admin, term: term,
	}
}

// dropBrief removes a snapshot that was there for one operation. If it cannot, the
// reconciler does.
func (m *Manager) dropBrief(ctx context.Context, n store.Snapshot) {
	ctx, cancel := m.ops.detach(ctx)
	defer cancel()
	m.snapshots.release(n.ID)
	if !m.snapshots.begin(n.ID) {
		return // somebody removes it already, or has found it: then the reconciler does it
	}
	defer m.snapshots.end(n.ID)
	keeper, err := m.snapshotKeeper(n.Provider)
	if err == nil {
		err = m.dropSnapshot(ctx, keeper, n.ID)
	}
	if err != nil && !errors.Is(err, errClosed) {
		m.o.Log.WarnContext(ctx, "a snapshot that nobody needs is left till later", slog.String("snapshot", string(n.ID)), slog.Any("error", err))
	}
}

// Expand completes a request for a sandbox that shall begin as a snapshot, or be made of a
// template: its image is "snapshot:" and the ID or name of one of the owner's, or
// "template:" and what FindTemplate finds. What the snapshot fixes, and the template says,
// is put in, so that others can look at it; Create does the same. Other requests stay as
// they are.
//
// NotFound: there is no such snapshot or build. Invalid: the request wants something else than
// the snapshot has.
func (m *Manager) Expand(ctx context.Context, r CreateRequest) (CreateRequest, error) {
	name, ok := r.Spec.Image.Snapshot()
	if !ok {
		r.Spec.Template, r.trusted = sandpit.TemplateOrigin{}, false
		return m.expandTemplate(ctx, r)
	}
	if r, ok, err := m.expandSnapshot(ctx, r, name); ok || err != nil {
		return r, err
	}
	n, err := m.o.Store.Snapshot(ctx, r.Owner, string(name))
	switch {
	case err == nil && n.State != store.SnapshotReady:
		err = sandpit.Errorf(sandpit.NotFound, "there is no snapshot %.100s", string(name))
	case err == nil && n.Problem != "":
		err = sandpit.Errorf(sandpit.Unsupported, "snapshot %s: %s", string(name), n.Problem)
	case errors.Is(err, sandpit.NotFound):
		err = sandpit.WithHint(err, "see: sandpit snapshot ls")
	}
	if err != nil {
		return r, err
	}
	if r.Provider != "" && r.Provider != n.Provider {
		return r, sandpit.Errorf(sandpit.Invalid, "snapshot %s is kept by provider %s, and the sandbox is to be made by %s",
			string(name), n.Provider, r.Provider)
	}
	r.Provider = n.Provider
	r.Spec, err = begun(n, r.Spec.Clone(), r.Offline)
	r.Offline = r.Offline || err == nil && !n.Spec.Network.Online // the server's default must not give it one
	return r, err
}

// begun returns the spec of a sandbox that begins as a snapshot.
func begun(n store.Snapshot, s sandpit.Spec, offline bool) (sandpit.Spec, error) {
	fixed := n.Spec.Clone()
	other := func(what string) error {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "snapshot %s has other %s than the sandbox shall have, and that is fixed", n.ID, what),
			"leave it out")
	}
	if len(s.Mounts) > 0 && !slices.Equal(s.Mounts, fixed.Mounts) {
		return s, other("mounts")
	}
	if s.Resources != (sandpit.Resources{}) && s.Resources != fixed.Resources {
		return s, other("limits")
	}
	if s.Network.Online && !fixed.Network.Online || offline && fixed.Network.Online {
		return s, other("network")
	}
	if fixed.Network.Online && !s.Network.Online {
		if s.Network.Equal(sandpit.NetworkPolicy{}) {
			s.Network = fixed.Network
		}
		s.Network.Online = true
	}
	s.Image, s.Mounts, s.Resources, s.Template = sandpit.SnapshotImage(n.ID), fixed.Mounts, fixed.Resources, fixed.Template
	for to, from := range map[*string]string{&s.User: fixed.User, &s.WorkDir: fixed.WorkDir, &s.Hostname: fixed.Hostname} {
		if *to == "" {
			*to = from
		}
	}
	return s, nil
}
