package manager

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Snapshots are the snapshots of all owners, and what is done with them: fork, roll back and compare.
// All methods may be called concurrently.
type Snapshots struct {
	clock         clock.Clock
	core          *core
	createSandbox func(context.Context, CreateRequest) (sandpit.Sandbox, error)
	deleteSandbox func(context.Context, sandpit.ID) error
	disk          *diskUse
	events        *Events
	identity      string
	instances     *instances
	lifecycle     *lifecycle
	log           *slog.Logger
	o             *Options
	records       *recordStore
	sandboxes     *recordIndex
	secrets       *secretFiles
	slots         slots
	snapshotUses  *snapshotUses
	store         *store.Store
	useSandbox    func(context.Context, sandpit.ID) (*Handle, error)
	wall          *wallClock
}

// snapshotUses counts the users of snapshots, which cannot be deleted while they have any.
type snapshotUses struct {
	mu     sync.Mutex
	users  map[sandpit.SnapshotID]int             // exclusiveUse while it is created or deleted
	strays map[string]map[sandpit.SnapshotID]bool // by provider: those without a row at the last comparison
}

// exclusiveUse is the count of a snapshot that is being created or deleted.
const exclusiveUse = -1

// beginExclusive takes a snapshot for its creation or deletion, and reports false if it has users.
// The caller calls endExclusive.
func (s *snapshotUses) beginExclusive(id sandpit.SnapshotID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[id] != 0 {
		return false
	}
	s.setUsers(id, exclusiveUse)
	return true
}

func (s *snapshotUses) endExclusive(id sandpit.SnapshotID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[id] == exclusiveUse {
		s.setUsers(id, 0)
	}
}

// shareExclusive turns exclusive use into shared use, which the caller ends with release.
func (s *snapshotUses) shareExclusive(id sandpit.SnapshotID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setUsers(id, 1)
}

// acquire keeps a snapshot from being deleted, and reports false if it is being created or deleted.
// The caller calls release.
func (s *snapshotUses) acquire(id sandpit.SnapshotID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.users[id] == exclusiveUse {
		return false
	}
	s.setUsers(id, s.users[id]+1)
	return true
}

func (s *snapshotUses) release(id sandpit.SnapshotID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setUsers(id, s.users[id]-1)
}

func (s *snapshotUses) setUsers(id sandpit.SnapshotID, n int) {
	if n == 0 {
		delete(s.users, id)
		return
	}
	if s.users == nil {
		s.users = make(map[sandpit.SnapshotID]int)
	}
	s.users[id] = n
}

// Create saves a running or paused sandbox, which continues. The name must be unused by the owner, and
// may be empty. It continues if the caller's context ends.
//
// Invalid: the name. AlreadyExists: the owner has a snapshot of that name. Conflict: the sandbox is
// neither running nor paused. Exhausted: the owner's limit is reached. Unsupported: its provider
// cannot do that.
func (ss *Snapshots) Create(ctx context.Context, id sandpit.ID, name string) (sandpit.Snapshot, error) {
	n := store.Snapshot{ID: sandpit.NewSnapshotID(), Name: name}
	if name != "" {
		if err := sandpit.CheckSnapshotName(name); err != nil {
			return sandpit.Snapshot{}, err
		}
	}
	result := make(chan store.Snapshot, 1)
	err := ss.core.runOperation(ctx, id, "snapshot", snapshotArgs(n), func(ctx context.Context, rec *sandboxRecord) error {
		made, err := ss.saveSandbox(ctx, rec, n)
		ss.snapshotUses.endExclusive(n.ID)
		result <- made
		return err
	})
	if err != nil {
		return sandpit.Snapshot{}, err
	}
	return toSnapshot(<-result), nil
}

func snapshotArgs(n store.Snapshot) map[string]string {
	args := map[string]string{"snapshot": string(n.ID), "name": n.Name}
	maps.DeleteFunc(args, func(_, value string) bool { return value == "" })
	return args
}

// saveSandbox creates a snapshot of a sandbox. The caller holds the sandbox's lock, and calls
// endExclusive for the snapshot, also after an error. After an error nothing of the snapshot
// remains, or it is removed later.
func (ss *Snapshots) saveSandbox(ctx context.Context, rec *sandboxRecord, n store.Snapshot) (store.Snapshot, error) {
	row := rec.currentRow()
	if row.State != sandpit.StateRunning && row.State != sandpit.StatePaused {
		return n, stateError(row)
	}
	if hasTempDir(row.Spec) {
		return n, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "snapshot sandbox %s: it has a temporary directory, which is deleted with it", rec.id),
			"use a volume instead")
	}
	keeper, err := ss.findKeeper(ctx, row.Provider)
	if err != nil {
		return n, err
	}
	i, err := ss.instances.ensureAttached(ctx, rec)
	if err != nil {
		return n, err
	}
	saver, ok := as[sandpit.Snapshotter](i)
	if !ok {
		return n, sandpit.Errorf(sandpit.Unsupported, "snapshot sandbox %s: its provider %q cannot do that", rec.id, row.Provider)
	}
	release, err := ss.core.acquireSlot(ctx, rec, ss.slots.saves)
	if err != nil {
		return n, err
	}
	defer release()
	n.Owner, n.Sandbox, n.Provider, n.Spec = row.Lease.Owner, rec.id, row.Provider, row.Spec.Clone()
	n.Spec.Env, n.Spec.Ports, n.Spec.Secrets = nil, nil, nil
	n.Size = ss.disk.estimateSave(ctx, i, len(row.Spec.Secrets) == 0)
	ctx, over, err := ss.reserveDisk(ctx, n)
	if err != nil {
		return n, err
	}
	made, err := ss.createSnapshot(ctx, keeper, n, func(ctx context.Context, n store.Snapshot) (store.Snapshot, error) {
		take := func(ctx context.Context) (sandpit.Snapshot, error) { return saver.Snapshot(ctx, n.ID) }
		made, err := callProvider(ctx, ss.core.loops, providerCall{what: "snapshot sandbox " + string(rec.id), limit: ss.o.CreateTimeout}, take,
			func(_ sandpit.Snapshot, err error) {
				if err == nil {
					ss.removeLate(keeper, n.ID)
				}
			})
		n.Size, n.Memory = made.Size, made.Memory
		return n, err
	})
	over(err)
	return made, err
}

// createSnapshot writes the row of a snapshot and then creates it.
func (ss *Snapshots) createSnapshot(
	ctx context.Context, keeper sandpit.SnapshotKeeper, n store.Snapshot, do func(context.Context, store.Snapshot) (store.Snapshot, error),
) (store.Snapshot, error) {
	n.State, n.CreatedAt = store.SnapshotCreating, ss.clock.Now()
	ss.snapshotUses.beginExclusive(n.ID) // it is new, so no other caller has it
	n, err := ss.insertSnapshot(ctx, n)
	if err != nil {
		return n, err
	}
	made, err := do(ctx, n)
	if err == nil {
		made.State = store.SnapshotReady
		err = ss.store.Snapshots().FinishSnapshot(ctx, made, ss.newLimits())
	}
	if err != nil { // reconcileSnapshots retries what cannot be removed now
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
		defer cancel()
		return n, errors.Join(err, ss.dropSnapshot(ctx, keeper, n.ID))
	}
	return made, nil
}

// reserveDisk reserves the disk for a snapshot of about n.Size bytes. The returned context is for
// the provider's call, and over is called with its error. A temporary snapshot counts as saved data
// of its owner until dropSnapshot.
func (ss *Snapshots) reserveDisk(ctx context.Context, n store.Snapshot) (saving context.Context, over func(error), err error) {
	if n.Brief {
		s, err := ss.disk.reserveSave(ctx, saveRequest{id: string(n.ID), owner: n.Owner, disk: ss.disk.saves, bytes: n.Size})
		if err != nil {
			return ctx, nil, err
		}
		return s.withAdmit(ctx), s.finish, nil
	}
	room, err := ss.disk.saves.Reserve(n.Owner, n.Size)
	if err != nil {
		return ctx, nil, err
	}
	admit := func(bytes int64) error {
		ss.disk.space.claimMu.Lock()
		defer ss.disk.space.claimMu.Unlock()
		return ss.disk.checkShare(ctx, n.Owner, bytes-n.Size) // the row counts n.Size already
	}
	return sandpit.WithAdmit(ctx, admit), func(error) { room.Release() }, nil
}

// insertSnapshot writes the row of a snapshot of about n.Size bytes.
func (ss *Snapshots) insertSnapshot(ctx context.Context, n store.Snapshot) (store.Snapshot, error) {
	ss.disk.space.claimMu.Lock()
	defer ss.disk.space.claimMu.Unlock()
	if !n.Brief {
		if err := ss.disk.checkShare(ctx, n.Owner, n.Size); err != nil {
			return n, err
		}
	}
	return ss.store.Snapshots().InsertSnapshot(ctx, n, ss.newLimits())
}

func (ss *Snapshots) newLimits() store.SnapshotLimits {
	return store.SnapshotLimits{Count: ss.o.MaxSnapshots, Bytes: ss.o.MaxSnapshotBytes}
}

// findKeeper returns the named provider's ability to keep snapshots.
func (ss *Snapshots) findKeeper(ctx context.Context, provider string) (sandpit.SnapshotKeeper, error) {
	return findAbility[sandpit.SnapshotKeeper](ctx, ss.core, provider, "snapshots")
}

// dropSnapshot removes a snapshot and then its row. The caller has exclusive use of it.
func (ss *Snapshots) dropSnapshot(ctx context.Context, keeper sandpit.SnapshotKeeper, id sandpit.SnapshotID) error {
	remove := func(ctx context.Context) error { return keeper.RemoveSnapshot(ctx, id) }
	if _, err := callProvider(ctx, ss.core.loops, ss.core.newCall("remove snapshot "+string(id)), withoutResult(remove), nil); err != nil {
		return err
	}
	ss.disk.space.dropClaim(string(id))
	err := ss.store.Snapshots().DeleteSnapshot(ctx, id)
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	return err
}

// removeLate removes a snapshot that was created after its caller had stopped waiting. If that
// fails, the reconciler finds it.
func (ss *Snapshots) removeLate(keeper sandpit.SnapshotKeeper, id sandpit.SnapshotID) {
	ctx, cancel := context.WithTimeout(ss.core.loops.ctx, ss.o.CallTimeout)
	defer cancel()
	err := keeper.RemoveSnapshot(ctx, id)
	ss.events.Record(Report{Actor: actorManager, Action: "remove late snapshot", Args: map[string]string{"snapshot": string(id)}, Err: err})
}

// holdReady returns an owner's snapshot that is ready and remains so until release is called.
//
// NotFound: no such snapshot. Conflict: it is being created or deleted.
func (ss *Snapshots) holdReady(ctx context.Context, owner, name string) (n store.Snapshot, release func(), err error) {
	n, err = ss.store.Snapshots().Snapshot(ctx, owner, name)
	if err != nil {
		return n, nil, err
	}
	if !ss.snapshotUses.acquire(n.ID) {
		return n, nil, sandpit.Errorf(sandpit.Conflict, "snapshot %s is being created or deleted", name)
	}
	release = func() { ss.snapshotUses.release(n.ID) }
	now, err := ss.store.Snapshots().Snapshot(ctx, owner, string(n.ID)) // it may have been deleted before acquire
	if err == nil && now.State != store.SnapshotReady {
		err = sandpit.Errorf(sandpit.NotFound, "snapshot %.100s not found", name)
	}
	if err != nil {
		release()
		return n, nil, err
	}
	return now, release, nil
}

// Get returns an owner's snapshot by its ID or name. NotFound.
func (ss *Snapshots) Get(ctx context.Context, owner, name string) (sandpit.Snapshot, error) {
	n, err := ss.store.Snapshots().Snapshot(ctx, owner, name)
	if err == nil && (n.State != store.SnapshotReady || n.Brief) {
		err = sandpit.Errorf(sandpit.NotFound, "snapshot %.100s not found", name)
	}
	if err != nil {
		return sandpit.Snapshot{}, err
	}
	return toSnapshot(n), nil
}

// List returns snapshots that are ready, in the order of their IDs.
func (ss *Snapshots) List(ctx context.Context, f store.SnapshotFilter) ([]sandpit.Snapshot, error) {
	f.Lasting = true
	rows, err := ss.store.Snapshots().ListSnapshots(ctx, f)
	if err != nil {
		return nil, err
	}
	list := make([]sandpit.Snapshot, len(rows))
	for i, n := range rows {
		list[i] = toSnapshot(n)
	}
	return list, nil
}

// toSnapshot returns a snapshot as callers see it.
func toSnapshot(n store.Snapshot) sandpit.Snapshot {
	return sandpit.Snapshot{
		ID: n.ID, Name: n.Name, Owner: n.Owner, Provider: n.Provider, Sandbox: n.Sandbox, Spec: n.Spec.Clone(),
		Memory: n.Memory, Size: n.Size, Unloadable: n.Problem, CreatedAt: n.CreatedAt,
	}
}

// Delete removes a snapshot; sandboxes that were created from it continue. It continues if the
// caller's context ends. What cannot be removed is retried later; another call retries at once.
//
// NotFound: there is no such snapshot. Conflict: it is in use.
func (ss *Snapshots) Delete(ctx context.Context, owner, name string) error {
	return ss.withEvent(ctx, "remove snapshot", store.Snapshot{Owner: owner, Name: name}, func(ctx context.Context) error {
		ctx, cancel := ss.core.ops.detach(ctx)
		defer cancel()
		n, err := ss.store.Snapshots().Snapshot(ctx, owner, name)
		if err != nil {
			return err
		}
		if !ss.snapshotUses.beginExclusive(n.ID) {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "snapshot %s is being created, used or deleted", name), "try again in a moment")
		}
		defer ss.snapshotUses.endExclusive(n.ID)
		keeper, err := ss.findKeeper(ctx, n.Provider)
		if err != nil {
			return err
		}
		if err := ss.store.Snapshots().SetSnapshotDeleting(ctx, n.ID); err != nil {
			return err
		}
		return ss.dropSnapshot(ctx, keeper, n.ID)
	})
}

// withEvent runs an operation for a caller and records it as one event. The operation's context
// ends with the caller's, and with the manager.
func (ss *Snapshots) withEvent(ctx context.Context, action string, n store.Snapshot, do func(context.Context) error) error {
	begin := time.Now()
	if ss.core.closing.Load() || !ss.core.ops.begin() {
		return errClosed
	}
	defer ss.core.ops.end()
	joined, cancel := ss.core.ops.join(ctx)
	defer cancel()
	err := causeOf(joined, do(joined))
	args := snapshotArgs(n)
	args["owner"] = n.Owner
	ss.events.Record(Report{Request: RequestIDOf(ctx), Actor: actorOf(ctx, n.Owner), Action: action, Args: args, Err: err, Took: time.Since(begin)})
	return err
}

// Export writes a snapshot as one stream, which Import reads, also on another server. After an
// error the stream is incomplete. NotFound. Conflict: it is being created or deleted.
func (ss *Snapshots) Export(ctx context.Context, owner, name string, to io.Writer) error {
	return ss.withEvent(ctx, "export snapshot", store.Snapshot{Owner: owner, Name: name}, func(ctx context.Context) error {
		n, release, err := ss.holdReady(ctx, owner, name)
		if err != nil {
			return err
		}
		defer release()
		keeper, err := ss.findKeeper(ctx, n.Provider)
		if err != nil {
			return err
		}
		return keeper.ExportSnapshot(ctx, n.ID, to)
	})
}

// ImportRequest asks for a snapshot to be imported.
type ImportRequest struct {
	Owner string
	// Name must be unused by the owner. Default: none.
	Name string
	// Provider keeps it. Default: Options.Provider.
	Provider string
}

// Import adds a snapshot that Export wrote. If it fails, or ctx ends, nothing of it remains. The
// stream is not trusted: mounts are refused, and so is a stream that exceeds the limit of the
// owner's snapshots.
//
// Invalid: the name, or not such a stream. AlreadyExists: the owner has a snapshot of that name.
// Exhausted: no room. Unsupported: no such provider, or it has no snapshots.
func (ss *Snapshots) Import(ctx context.Context, r ImportRequest, from io.Reader) (sandpit.Snapshot, error) {
	n := store.Snapshot{ID: sandpit.NewSnapshotID(), Owner: r.Owner, Name: r.Name, Provider: cmp.Or(r.Provider, ss.o.Provider)}
	err := ss.withEvent(ctx, "import snapshot", n, func(ctx context.Context) error {
		if n.Name != "" {
			if err := sandpit.CheckSnapshotName(n.Name); err != nil {
				return err
			}
		}
		keeper, err := ss.findKeeper(ctx, n.Provider)
		if err != nil {
			return err
		}
		defer ss.snapshotUses.endExclusive(n.ID)
		n, err = ss.createSnapshot(ctx, keeper, n, func(ctx context.Context, n store.Snapshot) (store.Snapshot, error) {
			made, err := keeper.ImportSnapshot(ctx, n.ID, ss.limitStream(from))
			if err != nil {
				return n, err
			}
			n.Size, n.Memory, n.Spec = made.Size, made.Memory, made.Spec.Clone()
			n.Spec.Ports = nil
			delete(n.Spec.Labels, Label)
			delete(n.Spec.Labels, sandpit.OwnerLabel)
			return n, checkImported(n.Spec)
		})
		return err
	})
	if err != nil {
		return sandpit.Snapshot{}, err
	}
	return toSnapshot(n), nil
}

// checkImported refuses a spec that a stream must not contain.
func checkImported(s sandpit.Spec) error {
	if len(s.Mounts) > 0 {
		return sandpit.Errorf(sandpit.Invalid, "a snapshot with mounts of directories or volumes cannot be imported")
	}
	return checkLabels(s.Labels)
}

// limitStream bounds a stream by the limit of an owner's snapshots.
func (ss *Snapshots) limitStream(r io.Reader) io.Reader {
	if ss.o.MaxSnapshotBytes == 0 {
		return r
	}
	return &limitedReader{r, ss.o.MaxSnapshotBytes}
}

type limitedReader struct {
	r         io.Reader
	remaining int64
}

// Read implements io.Reader.
func (b *limitedReader) Read(p []byte) (int, error) {
	if b.remaining <= 0 {
		return 0, sandpit.Errorf(sandpit.Exhausted, "the stream exceeds the limit of an owner's snapshots")
	}
	n, err := b.r.Read(p[:min(int64(len(p)), b.remaining)])
	b.remaining -= int64(n)
	return n, err
}
