// Package savedstate stores what is on disk of sandboxes that do not run: stopped and
// suspended sandboxes, checkpoints and snapshots.
//
// A [Store] has a directory for each saved state. A [Draft] is filled in a directory with
// another name, synced, and renamed when it is complete. So a state that is found is
// complete, whenever the process or the machine was killed. What a killed process leaves is
// removed by [Store.Sweep].
package savedstate

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

const (
	// DraftSuffix ends the names of directories that are being written or removed.
	DraftSuffix = ".tmp"
	// FileMode lets an engine, which may be another user, open what its provider may. The
	// directory above keeps all others out.
	FileMode = 0o444
	// MaxDescription bounds the description of a state, in bytes.
	MaxDescription = 8 << 20
)

// Store has the saved states of one kind. D describes a state; it is stored as JSON beside
// the state's files. A Store is safe for concurrent use by several processes, except that
// callers must not replace, detach or remove one state at the same time.
type Store[D any] struct {
	// Dir has a directory for each state. Empty: nothing can be stored.
	Dir string
	// Kind names a state in error messages, as "snapshot".
	Kind string
	// Description is the name of the file with the description.
	Description string
	// CheckName returns an error for what is not the name of a state.
	CheckName func(name string) error
	// Check returns an error for a description that does not belong to the name. Nil: there
	// is nothing to check.
	Check func(name string, d D) error
	// IsLarge reports whether a file is written past the page cache, in whole pages.
	IsLarge func(file string) bool
}

// Create creates the store's directory unless it exists.
func (s *Store[D]) Create() error {
	if err := os.Mkdir(s.Dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("create the directory of %ss: %w", s.Kind, err)
	}
	return nil
}

// Path returns the directory of a state.
func (s *Store[D]) Path(name string) string { return filepath.Join(s.Dir, name) }

// Has reports whether a state exists.
func (s *Store[D]) Has(name string) bool {
	if s.Dir == "" || s.CheckName(name) != nil {
		return false
	}
	_, err := os.Lstat(s.Path(name))
	return err == nil
}

// Names returns the names of all states.
func (s *Store[D]) Names() ([]string, error) {
	if s.Dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(s.Dir)
	if err != nil {
		return nil, fmt.Errorf("list %ss: %w", s.Kind, err)
	}
	var names []string
	for _, e := range entries {
		if s.CheckName(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// List returns the descriptions of all states by their names.
func (s *Store[D]) List() (map[string]D, error) {
	names, err := s.Names()
	if err != nil {
		return nil, err
	}
	all := make(map[string]D, len(names))
	for _, name := range names {
		d, err := s.Read(name)
		if sandpit.CodeOf(err) == sandpit.NotFound {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		all[name] = d
	}
	return all, nil
}

// Read returns the description of a state.
//
// NotFound: the state does not exist. Internal: the description is damaged.
func (s *Store[D]) Read(name string) (D, error) {
	var d D
	if s.Dir == "" || s.CheckName(name) != nil {
		return d, s.notFound(name)
	}
	f, err := os.Open(filepath.Join(s.Path(name), s.Description))
	if errors.Is(err, os.ErrNotExist) {
		return d, s.notFound(name)
	}
	if err != nil {
		return d, fmt.Errorf("read %s %s: %w", s.Kind, name, err)
	}
	defer f.Close()
	err = json.NewDecoder(io.LimitReader(f, MaxDescription)).Decode(&d)
	if err == nil && s.Check != nil {
		err = s.Check(name, d)
	}
	if err != nil {
		return d, sandpit.Errorf(sandpit.Internal, "read %s %s: %w", s.Kind, name, err)
	}
	return d, nil
}

// Rewrite replaces the description of a state in one step. The caller has the lock of the state.
//
// NotFound: the state does not exist. Exhausted: the disk is full, or the description is too large.
func (s *Store[D]) Rewrite(name string, change func(D) D) error {
	d, err := s.Read(name)
	if err != nil {
		return err
	}
	data, err := encodeDescription(change(d))
	if err == nil {
		err = WriteFile(s.Dir, name, filepath.Join(name, s.Description), data)
	}
	if err == nil {
		err = SyncDir(s.Path(name))
	}
	if err != nil {
		return s.ExplainFull(fmt.Errorf("change %s %s: %w", s.Kind, name, err))
	}
	return nil
}

func (s *Store[D]) notFound(name string) error {
	return sandpit.Errorf(sandpit.NotFound, "%s %s does not exist", s.Kind, name)
}

// OpenFile opens a file of a state for reading.
//
// Internal: the file does not have the size in bytes.
func (s *Store[D]) OpenFile(name, file string, size int64) (*os.File, error) {
	f, err := os.Open(filepath.Join(s.Path(name), file))
	if err != nil {
		return nil, fmt.Errorf("open %s %s: %w", s.Kind, name, err)
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() != size) {
		err = sandpit.Errorf(sandpit.Internal, "%s %s is damaged: %s has changed", s.Kind, name, file)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// SavedAt returns when a state was saved, the zero time if it does not exist. The description
// is written last.
func (s *Store[D]) SavedAt(name string) time.Time {
	if s.Dir == "" {
		return time.Time{}
	}
	info, err := os.Stat(filepath.Join(s.Path(name), s.Description))
	if err != nil {
		return time.Time{}
	}
	return info.ModTime()
}

// Bytes returns how many bytes a state has on disk. Images that are links to files of the
// image cache do not count. A state that does not exist has none.
func (s *Store[D]) Bytes(name string) int64 {
	if s.Dir == "" {
		return 0
	}
	return ownBytes(s.Path(name))
}

// Size returns how many bytes the files with the names have in a state. Files that do not
// exist have none.
func (s *Store[D]) Size(name string, files []string) int64 { return sizeOf(s.Path(name), files) }

func sizeOf(dir string, files []string) (sum int64) {
	for _, file := range files {
		if info, err := os.Stat(filepath.Join(dir, file)); err == nil {
			sum += info.Size()
		}
	}
	return sum
}

// ownBytes returns how many bytes the files in a directory have that have no second name
// elsewhere.
func ownBytes(dir string) (sum int64) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return 0
	}
	for _, e := range entries {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(dir, e.Name()), &st); err == nil && st.Nlink == 1 && st.Mode&unix.S_IFMT == unix.S_IFREG {
			sum += st.Size
		}
	}
	return sum
}

// Detach takes a state out of the store in one step, as a draft that the caller discards or
// moves to another store. Nil: the state did not exist.
func (s *Store[D]) Detach(name string) (*Draft[D], error) {
	if !s.Has(name) {
		return nil, nil //nolint:nilnil // there is nothing to detach
	}
	// Another sweep must not remove it before it is moved. Where the lock is held, the state
	// is being committed, and its committer does not move it.
	lock, _ := lockDir(s.Path(name))
	d := &Draft[D]{store: s, name: name, dir: draftName(s.Path(name)), lock: lock}
	err := unix.Rename(s.Path(name), d.dir)
	if err == nil {
		return d, nil
	}
	d.dir = ""
	d.Discard()
	if errors.Is(err, unix.ENOENT) {
		return nil, nil //nolint:nilnil // detached by another process meanwhile
	}
	return nil, fmt.Errorf("remove %s %s: %w", s.Kind, name, err)
}

// Remove removes a state if it exists.
func (s *Store[D]) Remove(name string) error {
	d, err := s.Detach(name)
	if err != nil || d == nil {
		return err
	}
	err = os.RemoveAll(d.dir)
	d.dir = ""
	d.Discard()
	if err != nil {
		return fmt.Errorf("remove %s %s: %w", s.Kind, name, err)
	}
	return nil
}

// Sweep removes what killed processes have left of drafts and removed states.
func (s *Store[D]) Sweep() error {
	if s.Dir == "" {
		return nil
	}
	if err := SweepDir(s.Dir, s.CheckName); err != nil {
		return fmt.Errorf("sweep %ss: %w", s.Kind, err)
	}
	return nil
}

// SweepDir is [Store.Sweep] for a directory in which [WriteFile] writes.
func SweepDir(dir string, checkName func(name string) error) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), "-")
		if !strings.HasSuffix(e.Name(), DraftSuffix) || checkName(name) != nil {
			continue
		}
		path := filepath.Join(dir, e.Name())
		lock, err := lockDir(path)
		if err != nil {
			continue // it is in use, or removed already
		}
		errs = append(errs, os.RemoveAll(path), lock.Close())
	}
	return errors.Join(errs...)
}

// ExplainFull adds to an error what the user can do if the disk is full.
func (s *Store[D]) ExplainFull(err error) error { return ExplainFull(s.Dir, err) }

// ExplainFull adds to an error what the user can do if the disk with the directory is full.
// Errors of a sandbox's kernel arrive as text, without their number; so it also checks
// whether there is room. Nil stays nil.
//
// Exhausted: the disk is full.
func ExplainFull(dir string, err error) error {
	if err != nil && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || isFull(dir)) {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%w", err),
			"make room on the disk of "+dir+", or delete stopped sandboxes")
	}
	return err
}

// isFull reports whether not even one MiB can be written.
func isFull(dir string) bool {
	const little = 1 << 20
	fd, err := unix.Open(dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = unix.Fallocate(fd, 0, 0, little)
		_ = unix.Close(fd) // which removes the file
	}
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
