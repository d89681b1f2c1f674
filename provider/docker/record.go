package docker

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/atomicfile"
)

// record is what is known of a sandbox and that its container cannot keep: it may
// change, or is nobody else's business.
type record struct {
	ID        sandpit.ID   `json:"id"`
	Container string       `json:"container"`
	Engine    string       `json:"engine,omitempty"` // its address
	Spec      sandpit.Spec `json:"spec"`             // with its environment, which Start needs again
	CreatedAt time.Time    `json:"created_at"`
	// Token is the guest's key. Whoever can read it may use the sandbox.
	Token string    `json:"token"`
	Image imageInfo `json:"image"`
	// Stopped says that the container does not run because somebody asked for that.
	Stopped bool `json:"stopped,omitempty"`
}

const (
	recordsName = "sandboxes"
	newPrefix   = ".new-" // of a record that is being written
)

func (p *Provider) recordsDir() string { return filepath.Join(p.o.StateDir, recordsName) }

func (p *Provider) recordFile(id sandpit.ID) string {
	return filepath.Join(p.recordsDir(), string(id)+".json")
}

// writeRecord replaces the record of a sandbox.
func (p *Provider) writeRecord(r record) error {
	if p.o.Ephemeral {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.kept[r.ID] = r
		return nil
	}
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	if err := atomicfile.Write(p.recordFile(r.ID), 0o600, data, atomicfile.Pattern(newPrefix+"*")); err != nil {
		return fmt.Errorf("write the record: %w", err)
	}
	return nil
}

// errDamaged is a record that cannot be read.
var errDamaged = errors.New("its record is damaged")

// readRecord returns NotFound when there is none of this container.
func (p *Provider) readRecord(id sandpit.ID, container string) (record, error) {
	if p.o.Ephemeral {
		p.mu.Lock()
		defer p.mu.Unlock()
		if r := p.kept[id]; r.Container == container {
			return r, nil
		}
		return record{}, sandpit.Errorf(sandpit.NotFound, "sandbox %s has no record", id)
	}
	var r record
	data, err := os.ReadFile(p.recordFile(id))
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

// staleFile is how old a record that is being written may be.
const staleFile = time.Hour

// loadRecords returns what is recorded of this engine, and removes what somebody was writing when they
// were killed. Files that are no records stay.
func (p *Provider) loadRecords() (map[sandpit.ID]record, error) {
	dir := filepath.Join(p.o.StateDir, recordsName)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("read the records: %w", err)
	}
	all := make(map[sandpit.ID]record)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), newPrefix) {
			if info, err := e.Info(); err == nil && time.Since(info.ModTime()) > staleFile {
				_ = os.Remove(filepath.Join(dir, e.Name())) // the next one tries again
			}
			continue
		}
		id := sandpit.ID(strings.TrimSuffix(e.Name(), ".json"))
		if id.Validate() != nil {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		var rec record
		if err != nil || json.Unmarshal(data, &rec) != nil || rec.ID != id {
			continue // removed meanwhile, or nothing that List could judge
		}
		if rec.Engine != p.engineHost() {
			continue // who knows what is there
		}
		all[id] = rec
	}
	return all, nil
}

func (p *Provider) removeRecord(id sandpit.ID, container string) error {
	_, err := p.readRecord(id, container)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return nil
	}
	if p.o.Ephemeral {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.kept, id)
		return nil
	}
	if err := os.Remove(p.recordFile(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// handle is what Attach needs.
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
	if !containerPattern.MatchString(h.Container) {
		return h, sandpit.Errorf(sandpit.Invalid, "handle: container %q", shortenText(h.Container))
	}
	return h, nil
}
