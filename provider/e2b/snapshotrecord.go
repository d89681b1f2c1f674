package e2b

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

// snapshotRecord is what the cloud does not store about a snapshot.
type snapshotRecord struct {
	Sandbox   sandpit.ID   `json:"sandbox"`
	Spec      sandpit.Spec `json:"spec"`
	Size      int64        `json:"size"`
	CreatedAt time.Time    `json:"created_at"`
}

func (r snapshotRecord) toSnapshot(id sandpit.SnapshotID) sandpit.Snapshot {
	return sandpit.Snapshot{ID: id, Sandbox: r.Sandbox, Spec: r.Spec.Clone(), Memory: true, Size: r.Size, CreatedAt: r.CreatedAt}
}

// snapshotRecords are the records of snapshots: files of a directory, or of a provider without one in memory.
type snapshotRecords struct {
	dir string

	mu     sync.Mutex
	memory map[sandpit.SnapshotID]snapshotRecord
}

func (s *snapshotRecords) file(id sandpit.SnapshotID) string {
	return filepath.Join(s.dir, string(id)+".json")
}

// read returns the record of a valid ID. NotFound.
func (s *snapshotRecords) read(id sandpit.SnapshotID) (r snapshotRecord, err error) {
	missing := sandpit.Errorf(sandpit.NotFound, "snapshot %s does not exist, or its record is missing", id)
	if s.dir == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		r, ok := s.memory[id]
		if !ok {
			return r, missing
		}
		return r, nil
	}
	data, err := os.ReadFile(s.file(id))
	if errors.Is(err, os.ErrNotExist) {
		return r, missing
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return r, sandpit.Errorf(sandpit.Internal, "read the record of snapshot %s: %w", id, err)
	}
	return r, nil
}

// write stores the record of a snapshot.
func (s *snapshotRecords) write(id sandpit.SnapshotID, r snapshotRecord) error {
	if s.dir == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.memory[id] = r
		return nil
	}
	data, err := json.Marshal(r)
	if err == nil {
		err = os.MkdirAll(s.dir, 0o700)
	}
	if err != nil {
		return err
	}
	return atomicfile.Create(s.file(id), 0o600, data)
}

// remove removes the record of a snapshot, if it exists.
func (s *snapshotRecords) remove(id sandpit.SnapshotID) error {
	if s.dir == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.memory, id)
		return nil
	}
	if err := os.Remove(s.file(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
