package e2b

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
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
//
// A record is written before the cloud creates the snapshot, and removed after the cloud has deleted it, so that no
// snapshot of the cloud ever lacks its record. A program that is killed in between leaves a record without a snapshot,
// which removeStale removes.
type snapshotRecords struct {
	dir string

	mu     sync.Mutex
	memory map[sandpit.SnapshotID]snapshotRecord
	saving map[sandpit.SnapshotID]bool // snapshots that this program has the cloud create
}

// snapshotLate is how long the cloud may take to create a snapshot after its program was killed, or the response was
// lost. The record of such a snapshot stays that long, because a snapshot without one could not be found again.
const snapshotLate = 5 * time.Minute

// recordSuffix is the end of the names of records.
const recordSuffix = ".json"

func (s *snapshotRecords) file(id sandpit.SnapshotID) string {
	return filepath.Join(s.dir, string(id)+recordSuffix)
}

// begin protects the record of a snapshot from removeStale until the returned function is called.
func (s *snapshotRecords) begin(id sandpit.SnapshotID) (end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.saving[id] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.saving, id)
	}
}

func (s *snapshotRecords) isSaving(id sandpit.SnapshotID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.saving[id]
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

// removeMissing removes the record of a snapshot that the cloud does not have, unless the cloud may still create it.
func (s *snapshotRecords) removeMissing(id sandpit.SnapshotID) error {
	if s.isLate(id) {
		return s.remove(id)
	}
	return nil
}

// isLate reports whether the cloud can no longer create the snapshot of a record.
func (s *snapshotRecords) isLate(id sandpit.SnapshotID) bool {
	if s.dir == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		return time.Since(s.memory[id].CreatedAt) > snapshotLate
	}
	about, err := os.Stat(s.file(id))
	return err == nil && time.Since(about.ModTime()) > snapshotLate
}

// removeStale removes the records of snapshots that the cloud does not have, and what killed programs have left of
// writing one. there has the snapshots that the cloud has.
func (s *snapshotRecords) removeStale(there map[sandpit.SnapshotID]bool) error {
	names, err := s.names()
	for _, name := range names {
		id := sandpit.SnapshotID(strings.TrimSuffix(name, recordSuffix))
		if id.Validate() == nil && !there[id] && !s.isSaving(id) {
			err = errors.Join(err, s.removeMissing(id))
		}
		if strings.HasPrefix(name, ".") {
			err = errors.Join(err, removeOld(filepath.Join(s.dir, name)))
		}
	}
	return err
}

// names returns the names of all records, and of temporary files.
func (s *snapshotRecords) names() (names []string, err error) {
	if s.dir == "" {
		s.mu.Lock()
		defer s.mu.Unlock()
		for id := range s.memory {
			names = append(names, string(id)+recordSuffix)
		}
		return names, nil
	}
	entries, err := os.ReadDir(s.dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	return names, err
}

// removeOld removes a temporary file, unless it may be being written.
func removeOld(file string) error {
	about, err := os.Lstat(file)
	if err == nil && time.Since(about.ModTime()) > snapshotLate {
		err = os.Remove(file)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
