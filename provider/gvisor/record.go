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

// record is the file by which other programs find a sandbox. It is in the directory of the engine
// that has the sandbox, and only its user can read it. The engine keeps it locked as long as the
// sandbox exists.
type record struct {
	ID        sandpit.ID   `json:"id"`
	Spec      sandpit.Spec `json:"spec"` // without environment
	CreatedAt time.Time    `json:"created_at"`
	// Token is the guest's key. It gives access to the sandbox.
	Token string `json:"token"`
	// Claims is how often the sandbox was claimed. Instances from before the last claim have no
	// access.
	Claims int `json:"claims,omitempty"`
	// Image is the image's configuration of programs.
	Image image.Config `json:"image"`
	// Shown are directories of the machine that belong to the image.
	Shown []sandpit.Mount `json:"shown,omitempty"`
	// Limits include the defaults at creation, so that the sandbox has the same limits when it
	// is started again.
	Limits limitsRequest `json:"limits"`
	// Group is the name of the control group inside, if the kernel was copied from another
	// sandbox. Empty: the sandbox's own ID.
	Group sandpit.ID `json:"group,omitempty"`
}

const recordSuffix = ".json"

func recordPath(engine string, id sandpit.ID) string {
	return filepath.Join(engine, boxesName, string(id)+recordSuffix)
}

// writeRecord creates and locks the record of a new sandbox. The caller closes the file when the
// engine has the lock as well.
func writeRecord(engine string, r record) (*os.File, error) {
	r.Spec = r.Spec.Clone()
	r.Spec.Env = nil // may have secrets, and is not needed again
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
		_ = os.Remove(path) // not in use yet
		return nil, fmt.Errorf("write the record: %w", err)
	}
	return f, nil
}

// rewriteRecord changes the record of an existing sandbox. The file stays the same one, because it
// is locked.
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
	// In one write, with spaces over the rest of a longer record, so that it can be read at any
	// moment.
	for int64(len(data)) < info.Size() {
		data = append(data, ' ')
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		return fmt.Errorf("change the record: %w", err)
	}
	return nil
}

// readRecord reads a record. NotFound: it does not exist, or is being written.
func readRecord(engine string, id sandpit.ID) (record, error) {
	var r record
	data, err := os.ReadFile(recordPath(engine, id))
	if err != nil {
		return r, sandpit.Errorf(sandpit.CodeOf(err), "sandbox %s: %w", id, err)
	}
	if err := json.Unmarshal(data, &r); err != nil {
		return r, sandpit.Errorf(sandpit.NotFound, "sandbox %s is being created", id)
	}
	return r, nil
}

// listRecords returns the records in the directories of all engines by the engine's name.
func listRecords(engines string) (map[string][]record, error) {
	dirs, err := os.ReadDir(engines)
	if err != nil {
		return nil, fmt.Errorf("list the engines: %w", err)
	}
	found := make(map[string][]record)
	for _, d := range dirs {
		entries, err := os.ReadDir(filepath.Join(engines, d.Name(), boxesName))
		if errors.Is(err, os.ErrNotExist) {
			continue // being created or removed
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
				continue // being created or removed
			}
			found[d.Name()] = append(found[d.Name()], r)
		}
	}
	return found, nil
}

// sweepEngines removes the directories and control groups of engines that have ended. Their
// processes, mounts and namespaces have ended with them.
func sweepEngines(engines string) error {
	lock, err := lockFile(engines, unix.LOCK_EX) // no engine is being created meanwhile
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
			continue // it is running
		}
		if held != nil {
			defer held.Close()
		}
		if err := cgroup.RemoveRecorded(filepath.Join(dir, cgroupsName)); err != nil {
			errs = append(errs, err)
			continue // the next sweep needs the directory to find the rest
		}
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}
