package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

// record is the data of a sandbox that its labels cannot hold, because it changes or is secret.
type record struct {
	ID        sandpit.ID   `json:"id"`
	Container string       `json:"container"`
	Engine    string       `json:"engine,omitempty"` // the address of its engine
	Spec      sandpit.Spec `json:"spec"`             // with its environment, for Start
	CreatedAt time.Time    `json:"created_at"`
	// Token is the key of the guest. It gives access to the sandbox.
	Token string    `json:"token"`
	Image imageInfo `json:"image"`
	// Stopped is set if the container does not run because the sandbox was stopped.
	Stopped bool `json:"stopped,omitempty"`
}

const (
	recordsName = "sandboxes"
	newPrefix   = ".new-" // of temporary files
)

// recordStore holds the records of sandboxes: as files in the state directory, or in memory for an
// ephemeral provider.
type recordStore struct {
	dir       string
	endpoint  string // of the engine that the provider uses
	ephemeral bool

	mu     sync.Mutex
	memory map[sandpit.ID]record // of an ephemeral provider
}

func newRecordStore(o Options) *recordStore {
	return &recordStore{
		dir: filepath.Join(o.StateDir, recordsName), endpoint: o.Endpoint.String(), ephemeral: o.Ephemeral,
		memory: make(map[sandpit.ID]record),
	}
}

// makeDir creates the directory of the records.
func (s *recordStore) makeDir() error {
	if s.ephemeral {
		return nil
	}
	if err := os.Mkdir(s.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("create the state directory: %w", err)
	}
	return nil
}

func (s *recordStore) recordFile(id sandpit.ID) string {
	return filepath.Join(s.dir, string(id)+".json")
}

// writeRecord replaces the record of a sandbox.
func (s *recordStore) writeRecord(r record) error {
	if s.ephemeral {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.memory[r.ID] = r
		return nil
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	if err := atomicfile.Write(s.recordFile(r.ID), 0o600, data, atomicfile.Pattern(newPrefix+"*")); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	return nil
}

// errDamaged is the error for a record that cannot be decoded.
var errDamaged = errors.New("damaged record")

// readRecord returns the record of a sandbox. NotFound: no record, or that of another container.
func (s *recordStore) readRecord(id sandpit.ID, container string) (record, error) {
	if s.ephemeral {
		s.mu.Lock()
		defer s.mu.Unlock()
		if r := s.memory[id]; r.Container == container {
			return r, nil
		}
		return record{}, sandpit.Errorf(sandpit.NotFound, "sandbox %s has no record", id)
	}
	var r record
	data, err := os.ReadFile(s.recordFile(id))
	if err != nil {
		return r, sandpit.Errorf(sandpit.CodeOf(err), "sandbox %s: %w", id, err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return record{}, sandpit.Errorf(sandpit.Internal, "sandbox %s: %w: %w", id, errDamaged, err)
	}
	if r.Container != container {
		return record{}, sandpit.Errorf(sandpit.NotFound, "sandbox %s has no record", id)
	}
	return r, nil
}

// staleFile is the age at which a temporary file counts as abandoned.
const staleFile = time.Hour

// loadRecords returns the records of this engine's sandboxes. It removes temporary files that a
// killed program left, and ignores other files.
func (s *recordStore) loadRecords() (map[sandpit.ID]record, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil {
		return nil, fmt.Errorf("read the records: %w", err)
	}
	all := make(map[sandpit.ID]record)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newPrefix) {
			if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > staleFile {
				_ = os.Remove(filepath.Join(s.dir, e.Name())) // retried by the next call
			}
			continue
		}
		id := sandpit.ID(strings.TrimSuffix(e.Name(), ".json"))
		if id.Validate() != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join(s.dir, e.Name()))
		var rec record
		if err != nil || json.Unmarshal(data, &rec) != nil || rec.ID != id {
			continue // removed meanwhile, or not readable
		}
		if rec.Engine != s.endpoint {
			continue // its container cannot be checked here
		}
		all[id] = rec
	}
	return all, nil
}

func (s *recordStore) removeRecord(id sandpit.ID, container string) error {
	_, err := s.readRecord(id, container)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return nil
	}
	if s.ephemeral {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.memory, id)
		return nil
	}
	if err := os.Remove(s.recordFile(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// handle identifies a sandbox for Attach.
type handle struct {
	ID        sandpit.ID `json:"id"`
	Container string     `json:"container"`
}

func (h handle) encodeHandle() []byte {
	data, _ := json.Marshal(h) // two strings always encode
	return data
}

func decodeHandle(data []byte) (handle, error) {
	var h handle
	if err := json.Unmarshal(data, &h); err != nil {
		return h, sandpit.Errorf(sandpit.Invalid, "handle: %w", err)
	}
	if err := h.ID.Validate(); err != nil {
		return h, err
	}
	if !containerPattern().MatchString(h.Container) {
		return h, sandpit.Errorf(sandpit.Invalid, "handle: invalid container ID %q", shortenText(h.Container))
	}
	return h, nil
}
