package e2b

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

var (
	_ sandpit.SnapshotKeeper = (*Provider)(nil)
	_ sandpit.Snapshotter    = (*Instance)(nil)
)

// snapshotPrefix returns the beginning of the names of this server's snapshots at the cloud.
func (p *Provider) snapshotPrefix() string { return "sandpit-" + strings.ToLower(p.o.Identity) + "-" }

// ownSnapshot returns the ID of a snapshot of this server.
func (p *Provider) ownSnapshot(s cloudSnapshot) (sandpit.SnapshotID, bool) {
	for _, name := range s.Names {
		name = name[strings.LastIndexByte(name, '/')+1:] // the account may precede it
		name, _, _ = strings.Cut(name, ":")
		text, own := strings.CutPrefix(name, p.snapshotPrefix())
		if id := sandpit.SnapshotID(text); own && id.Validate() == nil {
			return id, true
		}
	}
	return "", false
}

// findSnapshot returns the cloud's ID of a snapshot. NotFound.
func (p *Provider) findSnapshot(ctx context.Context, id sandpit.SnapshotID) (string, error) {
	all, err := p.findSnapshots(ctx, id)
	if err != nil {
		return "", err
	}
	return all[0], nil
}

// findSnapshots returns the cloud's IDs of a snapshot: there are two if the network delivered the request twice.
// NotFound.
func (p *Provider) findSnapshots(ctx context.Context, id sandpit.SnapshotID) (all []string, err error) {
	list, err := p.api.listSnapshots(ctx)
	if err != nil {
		return nil, err
	}
	for _, one := range list {
		if found, own := p.ownSnapshot(one); own && found == id {
			all = append(all, one.ID)
		}
	}
	if len(all) == 0 {
		return nil, sandpit.Errorf(sandpit.NotFound, "snapshot %s does not exist", id)
	}
	return all, nil
}

// specOfSnapshot returns the spec of a sandbox that starts from a snapshot, with what the snapshot fixes, and other specs as
// they are. template is the snapshot at the cloud, or "".
//
// NotFound: no such snapshot. Invalid: the spec differs from what the snapshot fixes.
func (p *Provider) specOfSnapshot(ctx context.Context, spec sandpit.Spec) (out sandpit.Spec, template string, err error) {
	id, ok := spec.Image.Snapshot()
	if !ok {
		return spec, "", nil
	}
	if err := id.Validate(); err != nil {
		return spec, "", err
	}
	record, err := p.records.read(id)
	if err != nil {
		return spec, "", err
	}
	was := record.Spec
	if spec.Resources != (sandpit.Resources{}) && spec.Resources != was.Resources || len(spec.Mounts) > 0 {
		return spec, "", sandpit.Errorf(sandpit.Invalid, "snapshot %s fixes the limits and mounts of its sandboxes", id)
	}
	spec.Resources = sandpit.Resources{} // the cloud takes those of the snapshot
	if !spec.Network.Online {
		spec.Network = was.Network.Clone()
	}
	template, err = p.findSnapshot(ctx, id)
	return spec, template, err
}

// Snapshot implements sandpit.Snapshotter. The cloud saves memory and files. E2B saves running sandboxes only, so a
// paused one is resumed for that, and paused again.
//
// Conflict: it is stopped. Unsupported: it mounts a volume.
func (i *Instance) Snapshot(ctx context.Context, id sandpit.SnapshotID) (saved sandpit.Snapshot, err error) {
	if err := id.Validate(); err != nil {
		return saved, err
	}
	err = i.b.change(ctx, "snapshot", func(state sandpit.State) error {
		if state != sandpit.StatePaused {
			if err := i.b.stateError(state); err != nil {
				return err
			}
		}
		if err := i.b.checkSavable(ctx, id); err != nil {
			return err
		}
		if state == sandpit.StatePaused {
			saved, err = i.b.savePaused(ctx, id)
		} else {
			saved, err = i.b.save(ctx, id)
		}
		return err
	})
	return saved, err
}

// checkSavable refuses a snapshot of a sandbox that mounts a volume, and one whose ID is taken.
func (b *sandbox) checkSavable(ctx context.Context, id sandpit.SnapshotID) error {
	if len(b.spec.Mounts) > 0 {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "it mounts volume %q: E2B does not say what a snapshot has of it", b.spec.Mounts[0].Volume),
			"create a sandbox without the volume, and copy the files that the snapshot needs")
	}
	_, err := b.p.findSnapshot(ctx, id)
	switch {
	case err == nil:
		return sandpit.Errorf(sandpit.AlreadyExists, "snapshot %s exists already", id)
	case sandpit.CodeOf(err) == sandpit.NotFound:
		return nil
	}
	return err
}

// savePaused resumes a paused sandbox, saves it and pauses it again. If it cannot be paused again, the snapshot is
// removed, and the cloud ends or pauses the sandbox at its expiry. The caller holds the lock.
func (b *sandbox) savePaused(ctx context.Context, id sandpit.SnapshotID) (saved sandpit.Snapshot, err error) {
	b.mu.Lock()
	suspended, expiry := b.suspended, b.expiry
	b.mu.Unlock()
	timeout, err := b.p.timeoutOf(expiry, time.Now())
	if err != nil {
		return saved, err
	}
	whole := context.WithoutCancel(ctx) // what was resumed is paused, also if the caller has left
	a, err := b.p.api.connectSandbox(whole, b.h.ID, b.h.Cloud, timeout)
	switch {
	case err == nil:
		b.setAccess(a)
		saved, err = b.save(ctx, id)
	case !cloudapi.MayHaveHappened(err):
		return saved, err
	}
	if paused := b.pauseAgain(whole); paused != nil {
		if err == nil {
			err = b.p.RemoveSnapshot(whole, id)
		}
		return sandpit.Snapshot{}, errors.Join(paused, err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setStateLocked(sandpit.StatePaused)
	b.suspended = suspended
	return saved, err
}

// pauseAgain pauses a sandbox that was resumed for a moment.
func (b *sandbox) pauseAgain(ctx context.Context) error {
	err := b.pause(ctx, true)
	if err == nil || sandpit.CodeOf(err) == sandpit.Conflict { // the cloud has paused it at its expiry
		return nil
	}
	b.setState(sandpit.StateRunning)
	return fmt.Errorf("pause it again: %w", err)
}

// save saves a running sandbox. The caller holds the lock.
func (b *sandbox) save(ctx context.Context, id sandpit.SnapshotID) (out sandpit.Snapshot, err error) {
	record, err := b.newRecord(ctx)
	if err != nil {
		return out, err
	}
	defer b.p.records.begin(id)()
	if err := b.p.records.write(id, record); err != nil {
		return out, err
	}
	// The request is not canceled with ctx: the cloud could create the snapshot nevertheless.
	whole := context.WithoutCancel(ctx)
	err = b.p.api.createSnapshot(whole, b.h.ID, b.h.Cloud, b.p.snapshotPrefix()+string(id))
	if err != nil {
		// The cloud has it if the response was lost, or if the network delivered the request twice and the second
		// delivery was refused: the name is of this call alone.
		if _, missing := b.p.findSnapshot(whole, id); missing == nil {
			err = nil
		}
	}
	if err = errors.Join(err, ctx.Err()); err != nil {
		return out, errors.Join(err, b.p.RemoveSnapshot(whole, id))
	}
	return record.toSnapshot(id), nil
}

// newRecord returns the record of a snapshot that is about to be taken. The cloud reports no size: it is what the sandbox
// uses of memory and disk.
func (b *sandbox) newRecord(ctx context.Context) (snapshotRecord, error) {
	record := snapshotRecord{Sandbox: b.h.ID, Spec: publicSpec(b.spec), CreatedAt: time.Now().UTC().Truncate(time.Millisecond)}
	if known := b.p.info(b.h.Cloud); known.network != nil {
		record.Spec.Network = known.network.Clone()
	}
	list, err := b.p.api.measureSandbox(ctx, b.h.ID, b.h.Cloud)
	if err == nil && len(list) > 0 {
		last := slices.MaxFunc(list, func(a, b measurement) int { return cmp.Compare(a.Unix, b.Unix) })
		record.Size = max(0, last.Memory) + max(0, last.Disk)
	}
	return record, err
}

// ListSnapshots implements sandpit.SnapshotKeeper. It removes records that killed programs have left.
func (p *Provider) ListSnapshots(ctx context.Context) (list []sandpit.Snapshot, err error) {
	all, err := p.api.listSnapshots(ctx)
	if err != nil {
		return nil, err
	}
	there := make(map[sandpit.SnapshotID]bool)
	for _, one := range all {
		id, own := p.ownSnapshot(one)
		if !own || there[id] {
			continue
		}
		there[id] = true
		record, err := p.records.read(id)
		s := record.toSnapshot(id)
		if err != nil {
			s.Unloadable = "its record cannot be read from the state directory"
		}
		list = append(list, s)
	}
	if err := p.records.removeStale(there); err != nil {
		p.o.Notice("provider e2b: records of snapshots that the cloud does not have: " + err.Error())
	}
	return list, nil
}

// RemoveSnapshot implements sandpit.SnapshotKeeper. The record of a snapshot that the cloud does not have, and may still
// create, stays for a while: ListSnapshots lists the snapshot when it exists.
func (p *Provider) RemoveSnapshot(ctx context.Context, id sandpit.SnapshotID) error {
	if err := id.Validate(); err != nil {
		return err
	}
	all, err := p.findSnapshots(ctx, id)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return p.records.removeMissing(id)
	}
	for _, cloudID := range all {
		err = errors.Join(err, p.api.deleteSnapshot(ctx, cloudID))
	}
	if err != nil {
		return err
	}
	return p.records.remove(id)
}

// ReadSnapshotLayer implements sandpit.SnapshotKeeper. E2B does not give out files of snapshots.
func (p *Provider) ReadSnapshotLayer(ctx context.Context, id sandpit.SnapshotID) (io.ReadCloser, error) {
	return nil, p.refuseFiles(ctx, id)
}

// ExportSnapshot implements sandpit.SnapshotKeeper. E2B does not give out files of snapshots.
func (p *Provider) ExportSnapshot(ctx context.Context, id sandpit.SnapshotID, _ io.Writer) error {
	return p.refuseFiles(ctx, id)
}

// ImportSnapshot implements sandpit.SnapshotKeeper. E2B does not accept files of snapshots.
func (p *Provider) ImportSnapshot(_ context.Context, id sandpit.SnapshotID, _ io.Reader) (sandpit.Snapshot, error) {
	return sandpit.Snapshot{}, sandpit.Errorf(sandpit.Unsupported, "import snapshot %s: E2B accepts no files of snapshots", id)
}

// refuseFiles returns the error of a call that needs the files of a snapshot.
func (p *Provider) refuseFiles(ctx context.Context, id sandpit.SnapshotID) error {
	if err := id.Validate(); err != nil {
		return err
	}
	if _, err := p.findSnapshot(ctx, id); err != nil {
		return err
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "read the files of snapshot %s: E2B does not give them out", id),
		"create a sandbox from the snapshot and copy its files")
}
