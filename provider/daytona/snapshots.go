package daytona

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

var (
	_ sandpit.SnapshotKeeper = (*Provider)(nil)
	_ sandpit.Snapshotter    = (*Instance)(nil)
)

// snapshot is a snapshot as the API describes it.
type snapshot struct {
	ID        string   `json:"id"`
	Name      string   `json:"name"`
	State     string   `json:"state"`
	Size      *float64 `json:"size"` // GiB
	Error     string   `json:"errorReason"`
	CreatedAt string   `json:"createdAt"`
}

// The states of snapshots.
const (
	snapshotActive   = "active"
	snapshotInactive = "inactive"
)

// isUsable reports whether sandboxes can start from the snapshot, and whether it has failed.
func (s snapshot) isUsable() (usable, failed bool) {
	return s.State == snapshotActive || s.State == snapshotInactive, s.State == "error" || s.State == "build_failed"
}

func (p *Provider) snapshotName(id sandpit.SnapshotID) string { return p.prefix() + string(id) }

// snapshotRecord is what the API does not store about a snapshot.
type snapshotRecord struct {
	Sandbox sandpit.ID   `json:"sandbox"`
	Spec    sandpit.Spec `json:"spec"`
}

func (p *Provider) snapshotFile(id sandpit.SnapshotID) string {
	return filepath.Join(p.o.StateDir, snapshotsName, string(id)+".json")
}

// readRecord returns the record of a snapshot.
func (p *Provider) readRecord(id sandpit.SnapshotID) (r snapshotRecord, err error) {
	if p.o.Ephemeral {
		value, _ := p.snapshotRecords.Load(id)
		if r, ok := value.(snapshotRecord); ok {
			return r, nil
		}
		return r, sandpit.Errorf(sandpit.NotFound, "snapshot %s has no record", id)
	}
	data, err := os.ReadFile(p.snapshotFile(id))
	if err != nil {
		return r, fmt.Errorf("read the record of snapshot %s: %w", id, err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, sandpit.Errorf(sandpit.Internal, "read the record of snapshot %s: %w", id, err)
	}
	return r, nil
}

func (p *Provider) writeRecord(id sandpit.SnapshotID, r snapshotRecord) error {
	if p.o.Ephemeral {
		p.snapshotRecords.Store(id, r)
		return nil
	}
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return atomicfile.Create(p.snapshotFile(id), 0o600, data)
}

func (p *Provider) removeRecord(id sandpit.SnapshotID) error {
	p.snapshotRecords.Delete(id)
	if p.o.Ephemeral {
		return nil
	}
	if err := os.Remove(p.snapshotFile(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// specOfSnapshot returns the spec of a sandbox that starts from a snapshot, with what the snapshot
// fixes, and other specs as they are.
//
// NotFound: no such snapshot. Invalid: the spec differs from what the snapshot fixes.
func (p *Provider) specOfSnapshot(spec sandpit.Spec) (sandpit.Spec, error) {
	id, ok := spec.Image.Snapshot()
	if !ok {
		return spec, nil
	}
	if err := id.Validate(); err != nil {
		return spec, err
	}
	r, err := p.readRecord(id)
	if err != nil {
		return spec, sandpit.Errorf(sandpit.NotFound, "snapshot %s does not exist", id)
	}
	was := r.Spec
	if spec.Resources != (sandpit.Resources{}) && spec.Resources != was.Resources || len(spec.Mounts) > 0 && !slices.Equal(spec.Mounts, was.Mounts) {
		return spec, sandpit.Errorf(sandpit.Invalid, "snapshot %s fixes the limits and mounts of its sandboxes", id)
	}
	spec.Resources = sandpit.Resources{} // Daytona takes those of the snapshot
	spec.Mounts = was.Mounts
	if !spec.Network.Online {
		spec.Network = was.Network
	}
	return spec, nil
}

// findSnapshot returns a snapshot. NotFound.
func (p *Provider) findSnapshot(ctx context.Context, id sandpit.SnapshotID) (s snapshot, err error) {
	err = p.control.getInto(ctx, "find snapshot "+string(id), "/snapshots/"+url.PathEscape(p.snapshotName(id)), &s)
	return s, err
}

// Snapshot implements sandpit.Snapshotter.
func (i *Instance) Snapshot(ctx context.Context, id sandpit.SnapshotID) (saved sandpit.Snapshot, err error) {
	if err := id.Validate(); err != nil {
		return saved, err
	}
	err = i.b.whileLocked(ctx, "snapshot", func(ctx context.Context) error {
		saved, err = i.b.save(ctx, id)
		return err
	})
	return saved, err
}

// save saves the sandbox. The caller holds the lock.
func (b *sandbox) save(ctx context.Context, id sandpit.SnapshotID) (out sandpit.Snapshot, err error) {
	now, err := b.requireState(ctx, stateStarted)
	if err != nil {
		return out, err
	}
	spec, err := specOf(now)
	if err != nil {
		return out, sandpit.Errorf(sandpit.Internal, "read the spec: %w", err)
	}
	switch _, err := b.p.findSnapshot(ctx, id); {
	case err == nil:
		return out, sandpit.Errorf(sandpit.AlreadyExists, "snapshot %s already exists", id)
	case sandpit.CodeOf(err) != sandpit.NotFound:
		return out, err
	}
	record := snapshotRecord{b.id, spec}
	if err := b.p.writeRecord(id, record); err != nil {
		return out, err
	}
	made, err := b.requestSnapshot(ctx, id)
	if err != nil {
		clean, cancel := b.p.cleanupContext(ctx)
		defer cancel()
		return out, errors.Join(err, b.p.RemoveSnapshot(clean, id))
	}
	return b.p.toSnapshot(id, made, record), nil
}

// requestSnapshot has Daytona save the sandbox, and waits until the snapshot can be used and the
// sandbox has its state again.
func (b *sandbox) requestSnapshot(ctx context.Context, id sandpit.SnapshotID) (snapshot, error) {
	err := b.p.control.call(ctx, cloudapi.Call{
		Operation: "snapshot", Sandbox: b.id, Method: http.MethodPost, Path: sandboxPath(b.ref, "snapshot"),
		Body: map[string]string{"name": b.p.snapshotName(id)}, Timeout: b.p.o.CreateTimeout, Missing: sandpit.Gone,
	})
	if cloudapi.StatusOf(err) == http.StatusUnprocessableEntity {
		return snapshot{}, sandpit.Errorf(sandpit.Unsupported, "Daytona cannot save sandboxes of this class: %w", err)
	}
	if err != nil {
		return snapshot{}, err
	}
	limited, cancel := context.WithTimeout(ctx, b.p.o.CreateTimeout)
	defer cancel()
	for {
		s, err := b.p.findSnapshot(limited, id)
		usable, failed := s.isUsable()
		switch {
		case err != nil && sandpit.CodeOf(err) != sandpit.NotFound: // it appears a moment later
			return s, err
		case failed:
			return s, sandpit.Errorf(sandpit.Unavailable, "Daytona cannot save the sandbox: %s", cleanText(s.Error))
		case usable:
			_, err = b.p.awaitState(limited, b.id, b.ref, b.p.o.StartTimeout, stateStarted)
			return s, err
		}
		select {
		case <-afterLook():
		case <-limited.Done():
			return s, sandpit.Errorf(sandpit.Timeout, "the snapshot is still %.40q at Daytona", s.State)
		}
	}
}

// toSnapshot converts a snapshot.
func (p *Provider) toSnapshot(id sandpit.SnapshotID, s snapshot, r snapshotRecord) sandpit.Snapshot {
	out := sandpit.Snapshot{ID: id, Sandbox: r.Sandbox, Spec: r.Spec, CreatedAt: parseTime(s.CreatedAt)}
	if s.Size != nil && *s.Size > 0 {
		out.Size = int64(*s.Size * gibibyte)
	}
	if out.CreatedAt.IsZero() {
		out.CreatedAt = time.Now()
	}
	return out
}

// ListSnapshots implements sandpit.SnapshotKeeper.
func (p *Provider) ListSnapshots(ctx context.Context) (list []sandpit.Snapshot, err error) {
	for number := 1; number <= maxPages; number++ {
		var page struct {
			Items      []snapshot `json:"items"`
			TotalPages int        `json:"totalPages"`
		}
		path := "/snapshots?" + url.Values{"page": {strconv.Itoa(number)}, "limit": {strconv.Itoa(pageSize)}}.Encode()
		if err := p.control.getInto(ctx, "list the snapshots", path, &page); err != nil {
			return nil, err
		}
		for _, s := range page.Items {
			text, own := strings.CutPrefix(s.Name, p.prefix())
			id := sandpit.SnapshotID(text)
			usable, _ := s.isUsable()
			if !own || id.Validate() != nil || !usable {
				continue
			}
			r, err := p.readRecord(id)
			one := p.toSnapshot(id, s, r)
			if err != nil {
				one.Unloadable = "its record is missing in the state directory"
			}
			list = append(list, one)
		}
		if number >= page.TotalPages {
			return list, nil
		}
	}
	return nil, sandpit.Errorf(sandpit.Internal, "list the snapshots: more than %d pages", maxPages)
}

// RemoveSnapshot implements sandpit.SnapshotKeeper.
func (p *Provider) RemoveSnapshot(ctx context.Context, id sandpit.SnapshotID) error {
	if err := id.Validate(); err != nil {
		return err
	}
	s, err := p.findSnapshot(ctx, id)
	if err == nil {
		err = p.control.call(ctx, cloudapi.Call{
			Operation: "remove snapshot " + string(id), Method: http.MethodDelete, Path: "/snapshots/" + url.PathEscape(s.ID), Expected: []int{http.StatusNotFound},
		})
	}
	if err != nil && sandpit.CodeOf(err) != sandpit.NotFound {
		return err
	}
	return p.removeRecord(id)
}

// ReadSnapshotLayer implements sandpit.SnapshotKeeper. Daytona does not give out files.
func (p *Provider) ReadSnapshotLayer(ctx context.Context, id sandpit.SnapshotID) (io.ReadCloser, error) {
	return nil, p.refuseFiles(ctx, id)
}

// ExportSnapshot implements sandpit.SnapshotKeeper. Daytona does not give out files.
func (p *Provider) ExportSnapshot(ctx context.Context, id sandpit.SnapshotID, _ io.Writer) error {
	return p.refuseFiles(ctx, id)
}

// ImportSnapshot implements sandpit.SnapshotKeeper. Daytona does not accept files.
func (p *Provider) ImportSnapshot(_ context.Context, id sandpit.SnapshotID, _ io.Reader) (sandpit.Snapshot, error) {
	return sandpit.Snapshot{}, sandpit.Errorf(sandpit.Unsupported, "import snapshot %s: Daytona accepts no files of snapshots", id)
}

// refuseFiles returns the error of a call that needs the files of a snapshot.
func (p *Provider) refuseFiles(ctx context.Context, id sandpit.SnapshotID) error {
	if err := id.Validate(); err != nil {
		return err
	}
	if _, err := p.findSnapshot(ctx, id); err != nil {
		return err
	}
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "read the files of snapshot %s: Daytona does not give them out", id),
		"create a sandbox from the snapshot and copy its files")
}

// snapshotRecords are the records of an ephemeral provider.
type snapshotRecords struct{ sync.Map }
