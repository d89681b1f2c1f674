package manager

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/core/store"
	"github.com/sandpit-dev/sandpit/internal/files/diskspace"
)

// diskUse reserves the disk space that saved sandboxes and snapshots take.
type diskUse struct {
	core     *core
	log      *slog.Logger
	o        *Options
	space    *savedSpace
	store    *store.Store
	volumes  *volumeSizes
	saves    *diskspace.Budget // the disk that sandboxes are saved on
	archives *diskspace.Budget // the disk that archived ones are on
}

// savedSpace counts the saved sandboxes of each owner and their bytes, with checkpoints and with
// snapshots that exist for a fork. Bytes are counted before they are written; what providers list
// corrects the counts.
type savedSpace struct {
	maxCount int
	maxBytes int64 // of each owner; 0: no limit

	// claimMu is held from the check of an owner's use until its claim is recorded.
	claimMu sync.Mutex

	mu      sync.Mutex
	claims  map[string]spaceClaim // by the ID of the sandbox or snapshot
	owners  map[string]spaceUse
	all     spaceUse
	refused int64
}

// spaceClaim is what one sandbox counts for.
type spaceClaim struct {
	owner string
	saved bool // the sandbox is stopped, suspended or archived
	// bytes counts what is saved, checkpoint its checkpoint, and pending what is being written.
	bytes, checkpoint, pending int64
}

// spaceUse is the use of one owner.
type spaceUse struct {
	count int
	bytes int64
}

func (c spaceClaim) use() spaceUse {
	u := spaceUse{bytes: c.bytes + c.checkpoint + c.pending}
	if c.saved {
		u.count = 1
	}
	return u
}

func newSavedSpace(o Options) *savedSpace {
	return &savedSpace{
		maxCount: o.MaxSaved, maxBytes: o.MaxSavedBytes,
		claims: make(map[string]spaceClaim), owners: make(map[string]spaceUse),
	}
}

// diskShare is how much of the disk an owner may take, and takes besides its claims.
type diskShare struct {
	limit int64 // 0: no limit
	other int64
}

// reserveClaim changes a claim, or fails with Exhausted if that exceeds the owner's limits. A claim
// that does not grow is never refused.
func (s *savedSpace) reserveClaim(id, owner string, d diskShare, edit func(*spaceClaim)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := s.claims[id]
	after := before
	after.owner = owner
	edit(&after)
	if err := s.checkLimits(before.use(), after.use(), owner, d); err != nil {
		s.refused++
		return err
	}
	s.setClaim(id, after)
	return nil
}

// checkLimits reports whether a claim may change. The lock is held.
func (s *savedSpace) checkLimits(before, after spaceUse, owner string, d diskShare) error {
	const hint = "delete sandboxes, snapshots or templates that are no longer needed, or raise the limit"
	has := s.owners[owner]
	if after.count > before.count && has.count >= s.maxCount {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "quota exceeded: owner %.100q has %d of %d stopped, suspended or archived sandboxes",
			owner, has.count, s.maxCount), hint)
	}
	more := after.bytes - before.bytes
	if more <= 0 {
		return nil
	}
	if s.maxBytes > 0 && has.bytes+more > s.maxBytes {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "quota exceeded: saved sandboxes of owner %.100q take %s of %s, and %s more are needed",
			owner, mebibytes(has.bytes), mebibytes(s.maxBytes), mebibytes(more)), hint)
	}
	return d.checkShare(owner, has.bytes, more)
}

// checkShare reports whether an owner may take more bytes of the disk.
func (d diskShare) checkShare(owner string, has, more int64) error {
	if d.limit == 0 || d.other+has+more <= d.limit {
		return nil
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "quota exceeded: saved data of owner %.100q takes %s of its %s of the disk, and %s more are needed",
		owner, mebibytes(d.other+has), mebibytes(d.limit), mebibytes(more)),
		"delete sandboxes, snapshots or templates that are no longer needed")
}

func mebibytes(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// changeClaim changes a claim whatever the limits.
func (s *savedSpace) changeClaim(id, owner string, edit func(*spaceClaim)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	c := s.claims[id]
	c.owner = owner
	edit(&c)
	s.setClaim(id, c)
}

// dropClaim removes a claim.
func (s *savedSpace) dropClaim(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setClaim(id, spaceClaim{owner: s.claims[id].owner})
}

// setClaim replaces a claim. The lock is held.
func (s *savedSpace) setClaim(id string, c spaceClaim) {
	s.addUse(s.claims[id], -1)
	s.addUse(c, 1)
	if s.claims[id] = c; c == (spaceClaim{owner: c.owner}) {
		delete(s.claims, id)
	}
}

func (s *savedSpace) addUse(c spaceClaim, times int) {
	use, has := c.use(), s.owners[c.owner]
	has.count += times * use.count
	has.bytes += int64(times) * use.bytes
	s.all.count += times * use.count
	s.all.bytes += int64(times) * use.bytes
	if s.owners[c.owner] = has; has == (spaceUse{}) {
		delete(s.owners, c.owner)
	}
}

func (s *savedSpace) usedBy(owner string) spaceUse {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.owners[owner]
}

func (s *savedSpace) status() fairshare.Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fairshare.Status{Name: "bytes of saved sandboxes", Used: s.all.bytes, Refused: s.refused}
}

// isSaved reports whether a sandbox in this state exists only on disk.
func isSaved(state sandpit.State, suspended bool) bool {
	switch state {
	case sandpit.StatePaused:
		return suspended
	case sandpit.StateStopped, sandpit.StateArchiving, sandpit.StateArchived, sandpit.StateRestoring:
		return true
	default:
		return false
	}
}

// countRecord counts a sandbox according to its row. A sandbox in transition or in error counts as
// before: its data is still on the disk.
func (du *diskUse) countRecord(row store.Row) {
	id, owner := string(row.ID), row.Lease.Owner
	switch {
	case isSaved(row.State, row.Suspended):
		du.space.changeClaim(id, owner, func(c *spaceClaim) { c.saved, c.pending = true, 0 })
	case row.State == sandpit.StateRunning || row.State == sandpit.StatePaused:
		du.space.changeClaim(id, owner, func(c *spaceClaim) {
			if row.CheckpointedAt.IsZero() {
				c.checkpoint = 0
			} else if c.bytes > 0 { // a started sandbox keeps the files of its stop as its checkpoint; a stop that failed leaves none
				c.checkpoint = c.bytes
			}
			c.saved, c.bytes, c.pending = false, 0, 0
		})
	case row.State == sandpit.StateDeleted:
		du.space.dropClaim(id)
	default:
	}
}

// correctCount corrects what is counted of a sandbox by what its provider lists. The caller holds
// the sandbox's lock.
func (du *diskUse) correctCount(rec *sandboxRecord, p sandpit.Placement) {
	row := rec.currentRow()
	du.space.changeClaim(string(rec.id), row.Lease.Owner, func(c *spaceClaim) {
		c.bytes, c.checkpoint = p.SavedBytes, p.CheckpointBytes
	})
}

// saveReservation is the disk space that an operation has reserved to save a sandbox.
type saveReservation struct {
	id, owner string
	space     *diskUse
	disk      *diskspace.Reservation
	released  atomic.Bool // set by release
}

// saveRequest asks for the space to save an owner's sandbox or snapshot.
type saveRequest struct {
	id, owner string
	disk      *diskspace.Budget
	bytes     int64
	stays     bool // the sandbox will exist only on disk
}

// reserveSave reserves the space for a save.
func (du *diskUse) reserveSave(ctx context.Context, plan saveRequest) (*saveReservation, error) {
	s := &saveReservation{space: du, id: plan.id, owner: plan.owner}
	var err error
	if s.disk, err = plan.disk.Reserve(plan.owner, plan.bytes); err != nil {
		return nil, err
	}
	err = du.claimSpace(ctx, plan.id, plan.owner, func(c *spaceClaim) { c.pending, c.saved = plan.bytes, c.saved || plan.stays })
	if err != nil {
		s.disk.Release()
		return nil, err
	}
	return s, nil
}

// claimSpace is savedSpace.reserveClaim with the owner's share of the disk.
func (du *diskUse) claimSpace(ctx context.Context, id, owner string, edit func(*spaceClaim)) error {
	du.space.claimMu.Lock()
	defer du.space.claimMu.Unlock()
	d, err := du.findShare(ctx, owner)
	if err != nil {
		return err
	}
	return du.space.reserveClaim(id, owner, d, edit)
}

// withAdmit returns a context through which a provider asks whether the bytes that it has written
// fit.
func (s *saveReservation) withAdmit(ctx context.Context) context.Context {
	return sandpit.WithAdmit(ctx, func(bytes int64) error {
		if s.released.Load() {
			return sandpit.Errorf(sandpit.Canceled, "the request that saves the sandbox has ended")
		}
		return s.space.claimSpace(ctx, s.id, s.owner, func(c *spaceClaim) { c.pending = bytes })
	})
}

// release ends the reservation of the disk: what was written exists by now, or is gone. Bytes that
// a provider still writes after it are refused.
func (s *saveReservation) release() {
	s.released.Store(true)
	s.disk.Release()
}

// finish is release, and counts what was written unless err is set.
func (s *saveReservation) finish(err error) {
	s.release()
	if err != nil {
		s.cancel()
		return
	}
	s.space.finishSave(s.id, s.owner)
}

// finishSave counts what was written and no longer what was saved before.
func (du *diskUse) finishSave(id, owner string) {
	du.space.changeClaim(id, owner, func(c *spaceClaim) {
		if c.pending > 0 { // 0: the size is unknown
			c.bytes, c.pending = c.pending, 0
		}
	})
}

// finishCheckpoint is finishSave for a checkpoint.
func (s *saveReservation) finishCheckpoint() {
	s.space.space.changeClaim(s.id, s.owner, func(c *spaceClaim) { c.checkpoint, c.pending = c.pending, 0 })
}

// cancel records that nothing was written.
func (s *saveReservation) cancel() {
	s.space.space.changeClaim(s.id, s.owner, func(c *spaceClaim) { c.pending = 0 })
}

// estimateSave returns about how many bytes it takes to save a sandbox, 0 if that is unknown.
func (du *diskUse) estimateSave(ctx context.Context, i sandpit.Instance, memory bool) int64 {
	e, ok := as[sandpit.SaveEstimator](i)
	if !ok {
		return 0
	}
	ask := func(ctx context.Context) (int64, error) { return e.EstimateSave(ctx, memory) }
	bytes, err := callProvider(ctx, du.core.loops, providerCall{what: "estimate", limit: min(guestLimit, du.o.CallTimeout)}, ask, nil)
	if err != nil { // the provider calls the admit function when it knows the size
		du.log.DebugContext(ctx, "manager: saved size unknown", slog.String("sandbox", string(i.ID())), slog.Any("error", err))
		return 0
	}
	return max(0, bytes)
}

// findShare returns how much of the disk an owner may take: half of it while it has to leave room
// for others.
func (du *diskUse) findShare(ctx context.Context, owner string) (diskShare, error) {
	size, err := du.o.Disk.Size()
	if err != nil || size == 0 || !du.core.mustShare(owner) {
		return diskShare{}, err
	}
	kept, err := du.store.Snapshots().KeptBytes(ctx, owner)
	if err != nil {
		return diskShare{}, err
	}
	volumes, _ := du.volumes.usedBy(owner) // the bytes of one that cannot be measured are the last known ones
	return diskShare{limit: fairshare.Half(size), other: kept + volumes}, nil
}

// checkVolumeWriter reports whether a sandbox may run: it can write no volume, or the volumes of its
// owner are small enough and the disk is not almost full.
func (du *diskUse) checkVolumeWriter(ctx context.Context, row store.Row) error {
	if !writesVolumes(row.Spec) {
		return nil
	}
	return cmp.Or(du.checkVolumes(ctx, row.Lease.Owner), du.volumes.shortage())
}

// checkVolumes reports whether the volumes of an owner exceed a limit.
func (du *diskUse) checkVolumes(ctx context.Context, owner string) error {
	const hint = "delete a volume; a sandbox that mounts it read-only can copy what is needed"
	used, err := du.volumes.usedBy(owner)
	if err != nil {
		return sandpit.WithHint(err, hint)
	}
	if limit := du.o.MaxVolumeBytes; limit > 0 && used > limit {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "quota exceeded: volumes of owner %.100q take %s of %s",
			owner, mebibytes(used), mebibytes(limit)), hint)
	}
	d, err := du.findShare(ctx, owner)
	if all := d.other + du.space.usedBy(owner).bytes; err == nil && used > 0 && d.limit > 0 && all > d.limit {
		err = sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "quota exceeded: volumes and saved data of owner %.100q take %s of its %s of the disk",
			owner, mebibytes(all), mebibytes(d.limit)), hint)
	}
	return err
}

// checkShare reports whether an owner may take more bytes of the disk. The caller holds
// savedSpace.claimMu until they are counted.
func (du *diskUse) checkShare(ctx context.Context, owner string, more int64) error {
	d, err := du.findShare(ctx, owner)
	if err != nil || more <= 0 {
		return err
	}
	return d.checkShare(owner, du.space.usedBy(owner).bytes, more)
}
