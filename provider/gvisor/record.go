package gvisor

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/provider/gvisor/internal/cgroup"
)

// record is the file by which other programs find a sandbox. It lies in the
// directory of the engine that holds the sandbox, readable by its user alone.
// The engine keeps it locked for as long as the sandbox exists.
type record struct {
	ID        sandpit.ID   `json:"id"`
	Spec      sandpit.Spec `json:"spec"` // without environment
	CreatedAt time.Time    `json:"created_at"`
	// Token is the guest's key. Whoever can read it may use the sandbox.
	Token string `json:"token"`
	// Claims is how often the sandbox was claimed. An Instance of before the last claim may
	// not use it.
	Claims int `json:"claims,omitempty"`
	// Image is what the image says of its programs.
	Image image.Config `json:"image"`
	// Shown are directories of the machine that belong to the image.
	Shown []sandpit.Mount `json:"shown,omitempty"`
	// Limits are those it was made with, defaults included: it has the same when it
	// is started again.
	Limits limitsRequest `json:"limits"`
	// Group is whose name the control group inside has, if the kernel began as another
	// sandbox's: a copy keeps it. "" is the sandbox's own.
	Group sandpit.ID `json:"group,omitempty"`
}

const recordSuffix = ".json"

func recordPath(engine string, id sandpit.ID) string {
	return filepath.Join(engine, boxesName, string(id)+recordSuffix)
}

// writeRecord creates and locks the record of a new sandbox. The file is the
// caller's to close, once the engine holds the lock too.
func writeRecord(engine string, r record) (*os.File, error) {
	r.Spec = r.Spec.Clone()
	r.Spec.Env = nil // may hold secrets, and nobody needs it again
	data, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("write the record: %w", err)
	}
	path := recordPath(engine, r.ID)
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil, sandpit.Errorf(sandpit.AlreadyExists, "sandbox %s exists already", r.ID)
	}
	if err != nil {
		return nil, fmt.Errorf("write the record: %w", err)
	}
	_, err = f.Write(data)
	if err == nil {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	if err != nil {
		_ = f.Close()
		_ = os.Remove(path) // nothing else knows of it yet
		return nil, fmt.Errorf("write the record: %w", err)
	}
	return f, nil
}

// rewriteRecord changes the record of a sandbox that is there. The file stays the
// same one, for it is locked.
func rewriteRecord(engine string, r record) error {
	r.Spec = r.Spec.Clone()
	r.Spec.Env = nil
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("change the record: %w", err)
	}
	f, err := os.OpenFile(recordPath(engine, r.ID), os.O_WRONLY, 0)
	if err != nil {
		return fmt.Errorf("change the record: %w", err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return fmt.Errorf("change the record: %w", err)
	}
	// In one piece, with white space over what was longer before, so that it can be
	// read at any moment.
	for int64(len(data)) < info.Size() {
		data = append(data, ' ')
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return fmt.Errorf("change the record: %w", err)
	}
	return nil
}

// readRecord returns NotFound when there is no such record.
func readRecord(engine string, id sandpit.ID) (record, error) {
	var r record
	data, err := os.ReadFile(recordPath(engine, id))
	if err != nil {
		return r, sandpit.Errorf(sandpit.CodeOf(err), "sandbox %s: %w", id, err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, sandpit.Errorf(sandpit.NotFound, "sandbox %s is just being made", id)
	}
	return r, nil
}

// listRecords returns the records in the directories of all living engines.
func listRecords(engines string) (map[string][]record, error) {
	dirs, err := os.ReadDir(engines)
	if err != nil {
		return nil, fmt.Errorf("list the engines: %w", err)
	}
	found := make(map[string][]record)
	for _, d := range dirs {
		entries, err := os.ReadDir(filepath.Join(engines, d.Name(), boxesName))
		if errors.Is(err, os.ErrNotExist) {
			continue // just being made or removed
		}
		if err != nil {
			return nil, fmt.Errorf("list the sandboxes: %w", err)
		}
		for _, e := range entries {
			id, ok := strings.CutSuffix(e.Name(), recordSuffix)
			if !ok {
				continue
			}
			r, err := readRecord(filepath.Join(engines, d.Name()), sandpit.ID(id))
			if err != nil {
				continue // just being made or removed
			}
			found[d.Name()] = append(found[d.Name()], r)
		}
	}
	return found, nil
}

// sweepEngines removes the directories and control groups of engines that no longer
// live. Nothing else is left of those: their processes, mounts and namespaces went
// with them.
func sweepEngines(engines string) error {
	lock, err := lockFile(engines, unix.LOCK_EX) // no engine is being made meanwhile
	if err != nil {
		return fmt.Errorf("lock the runtime directory: %w", err)
	}
	defer lock.Close()
	dirs, err := os.ReadDir(engines)
	if err != nil {
		return fmt.Errorf("list the engines: %w", err)
	}
	var errs []error
	for _, d := range dirs {
		dir := filepath.Join(engines, d.Name())
		held, err := lockFile(filepath.Join(dir, lockName), unix.LOCK_EX|unix.LOCK_NB)
		if errors.Is(err, unix.EWOULDBLOCK) {
			continue // it lives
		}
		if held != nil {
			defer held.Close()
		}
		if err := cgroup.RemoveRecorded(filepath.Join(dir, cgroupsName)); err != nil {
			errs = append(errs, err)
			continue // the next sweep finds the rest by what the directory knows
		}
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}
