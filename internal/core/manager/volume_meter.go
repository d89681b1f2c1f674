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
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// volumeMeter enforces the limit of each owner's volumes. Providers cannot limit a volume while a
// sandbox writes, so the meter measures those that running sandboxes can write, and pauses the
// sandboxes of an owner whose volumes are too large. They cannot be resumed before that changes.
type volumeMeter struct {
	actions   *policyActions
	core      *core
	disk      *diskUse
	log       *slog.Logger
	o         *Options
	sandboxes *recordIndex
	volumes   *Volumes

	mu     sync.Mutex
	passes map[string]volumePass // by owner
}

// volumeSizes are the last sizes of volumes.
type volumeSizes struct {
	mu    sync.Mutex
	byID  map[sandpit.ID]volumeSize
	short error // why no volume may be written: the disk is almost full
}

// volumeSize is the last size of a volume.
type volumeSize struct {
	owner string
	bytes int64
	err   error // why the volume cannot be measured, which counts as too large
}

// The times between the passes over an owner's volumes. Volumes that take long to measure are measured
// less often, so that an owner cannot keep the server busy with them.
const (
	volumePassEvery = 5 * time.Second
	volumePassRest  = 10 // times as long as the pass took
)

// volumePass is the state of the passes over an owner's volumes.
type volumePass struct {
	running bool
	next    time.Time
}

// runLoop measures all volumes once, and those that are being written again and again.
func (vm *volumeMeter) runLoop(ctx context.Context) {
	vm.measureAll(ctx)
	for sleep(ctx, volumePassEvery) == nil {
		vm.checkWriters(ctx)
	}
}

// measureAll measures all volumes.
func (vm *volumeMeter) measureAll(ctx context.Context) {
	rows, err := vm.volumes.store.Volumes().ListVolumes(ctx, store.VolumeFilter{All: true})
	if err != nil {
		vm.log.WarnContext(ctx, "manager: volumes not measured", slog.Any("error", err))
		return
	}
	for _, v := range rows {
		if ctx.Err() == nil && v.State == store.VolumeReady {
			vm.measureVolume(ctx, v)
		}
	}
}

// findWriters returns the running sandboxes that can write volumes, by their owners.
func (vm *volumeMeter) findWriters() map[string][]*sandboxRecord {
	writers := make(map[string][]*sandboxRecord)
	for _, rec := range vm.sandboxes.all() {
		if row := rec.currentRow(); row.State == sandpit.StateRunning && writesVolumes(row.Spec) {
			writers[row.Lease.Owner] = append(writers[row.Lease.Owner], rec)
		}
	}
	return writers
}

// writesVolumes reports whether a sandbox can write volumes.
func writesVolumes(spec sandpit.Spec) bool {
	return slices.ContainsFunc(spec.Mounts, func(m sandpit.Mount) bool { return m.Volume != "" && !m.ReadOnly })
}

// checkWriters starts a pass over the volumes of each owner that has running sandboxes which can
// write them. Owners do not wait for each other.
func (vm *volumeMeter) checkWriters(ctx context.Context) {
	short := vm.o.Disk.Check()
	if short != nil && !errors.Is(short, sandpit.Exhausted) {
		vm.log.WarnContext(ctx, "manager: disk not measured", slog.Any("error", short))
		short = nil
	}
	wasShort := vm.disk.volumes.setShortage(short)
	for owner, writers := range vm.findWriters() {
		if !vm.beginPass(owner, short != nil) {
			continue
		}
		vm.core.loops.start(func(ctx context.Context) {
			begin := time.Now()
			defer func() { vm.endPass(owner, time.Since(begin)) }()
			vm.checkOwner(ctx, owner, writers, short, wasShort)
		})
	}
}

// beginPass reports whether a pass over an owner's volumes is due, or must be made now.
func (vm *volumeMeter) beginPass(owner string, now bool) bool {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	pass := vm.passes[owner]
	if pass.running || !now && time.Now().Before(pass.next) {
		return false
	}
	vm.passes[owner] = volumePass{running: true}
	return true
}

func (vm *volumeMeter) endPass(owner string, took time.Duration) {
	vm.mu.Lock()
	defer vm.mu.Unlock()
	vm.passes[owner] = volumePass{next: time.Now().Add(volumePassRest * took)}
}

// checkOwner measures the volumes of an owner that its sandboxes can write, and pauses these sandboxes
// if its volumes are too large. When the disk is almost full, it pauses those whose volumes grow, and
// then all that can write volumes: a deleted file that is still open grows unseen.
func (vm *volumeMeter) checkOwner(ctx context.Context, owner string, writers []*sandboxRecord, short error, wasShort bool) {
	grew := make(map[string]bool) // by name
	for _, rec := range writers {
		for _, m := range rec.currentRow().Spec.Mounts {
			if _, measured := grew[m.Volume]; m.Volume == "" || m.ReadOnly || measured || ctx.Err() != nil {
				continue
			}
			v, err := vm.volumes.store.Volumes().Volume(ctx, owner, m.Volume)
			grew[m.Volume] = err == nil && vm.measureVolume(ctx, v)
		}
	}
	why := vm.disk.checkVolumes(ctx, owner)
	if why != nil && !errors.Is(why, sandpit.Exhausted) {
		vm.log.WarnContext(ctx, "manager: volumes not checked", slog.String("owner", owner), slog.Any("error", why))
		why = nil
	}
	ending := slices.DeleteFunc(slices.Clone(writers), func(rec *sandboxRecord) bool {
		growing := slices.ContainsFunc(rec.currentRow().Spec.Mounts, func(m sandpit.Mount) bool { return !m.ReadOnly && grew[m.Volume] })
		return why == nil && (short == nil || !growing && !wasShort)
	})
	forEach(vm.o.Parallel, ending, func(rec *sandboxRecord) { vm.pauseWriter(ctx, rec, cmp.Or(why, short)) })
}

// pauseWriter pauses a sandbox whose writes must end. A provider that cannot pause it stops it, or
// deletes it if it cannot do that either.
func (vm *volumeMeter) pauseWriter(ctx context.Context, rec *sandboxRecord, why error) {
	vm.core.logMismatch(ctx, rec.id, vm.core.runIfUnlocked(ctx, rec, func(ctx context.Context, rec *sandboxRecord) error {
		if rec.state() != sandpit.StateRunning {
			return errNothingToDo
		}
		var err error
		for _, a := range []sandpit.Action{sandpit.ActionPause, sandpit.ActionStop, sandpit.ActionKill} {
			if err = vm.actions.tryAction(ctx, rec, a, why.Error(), false); !errors.Is(err, sandpit.Unsupported) {
				break
			}
		}
		return err
	}))
}

// measureVolume measures a volume and reports whether it has grown.
func (vm *volumeMeter) measureVolume(ctx context.Context, v store.Volume) (grew bool) {
	bytes, err := vm.volumes.measureVolume(ctx, v)
	before := vm.disk.volumes.findSize(v.ID)
	now := volumeSize{owner: v.Owner, bytes: bytes}
	switch {
	case errors.Is(err, sandpit.Exhausted):
		now.bytes, now.err = before.bytes, err
	case errors.Is(err, sandpit.NotFound):
		vm.disk.volumes.dropSize(v.ID)
		return false
	case err != nil:
		vm.log.WarnContext(ctx, "manager: volume not measured", slog.String("volume", v.Name),
			slog.String("owner", v.Owner), slog.Any("error", err))
		now.bytes, now.err = before.bytes, before.err
	}
	vm.disk.volumes.setSize(v.ID, now)
	// A deletion marks the row before it drops the size, so one of the two drops the size of a volume
	// that is deleted meanwhile.
	row, err := vm.volumes.store.Volumes().Volume(ctx, v.Owner, v.Name)
	if errors.Is(err, sandpit.NotFound) || err == nil && (row.ID != v.ID || row.State != store.VolumeReady) {
		vm.disk.volumes.dropSize(v.ID)
		return false
	}
	return now.bytes > before.bytes
}

// usedBy returns how many bytes the volumes of an owner take. Exhausted: one of them cannot be
// measured.
func (vs *volumeSizes) usedBy(owner string) (bytes int64, err error) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	for _, size := range vs.byID {
		if size.owner == owner {
			bytes += size.bytes
			err = cmp.Or(err, size.err)
		}
	}
	return bytes, err
}

func (vs *volumeSizes) findSize(id sandpit.ID) volumeSize {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return vs.byID[id]
}

func (vs *volumeSizes) setSize(id sandpit.ID, s volumeSize) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	vs.byID[id] = s
}

func (vs *volumeSizes) dropSize(id sandpit.ID) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	delete(vs.byID, id)
}

// setShortage records why nothing may be written and reports whether something was recorded before.
func (vs *volumeSizes) setShortage(short error) (before bool) {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	before = vs.short != nil
	vs.short = short
	return before
}

func (vs *volumeSizes) shortage() error {
	vs.mu.Lock()
	defer vs.mu.Unlock()
	return vs.short
}
