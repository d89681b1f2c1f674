package gvisor

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"

	"github.com/sandpit-dev/sandpit"
)

// keeper has the files of stopped sandboxes, in a directory for each. While that is
// there the sandbox is stopped: whatever an engine still has of it is a leftover, of
// a stop that was not finished or of a start that was not. A directory gets its
// name when everything in it is on the disk, and so is never found half-made.
type keeper struct {
	dir string // "" keeps nothing
	// locks is where the lock is, if that is another directory.
	locks string
}

const (
	keptRecord = "record.json"
	keptRoot   = "root.erofs"
	keeperLock = "lock"
	halfSuffix = ".tmp" // of directories in the making, or being removed
	// keptMode lets an engine, which may be another user, open what its provider
	// may. The directory keeps everybody else out.
	keptMode      = 0o444
	maxKeptRecord = 8 << 20
	keepFormat    = 1
)

// layerFiles are the names that gVisor gives to the files that a layer is saved in.
func layerFiles() []string {
	return []string{
		checkpointfiles.FSCheckpointManifestFileName, checkpointfiles.FSCheckpointMultiTarFileName,
		checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName,
	}
}

// kept is what is written of a stopped sandbox beside its files.
type kept struct {
	Format int `json:"format"`
	// Record has the environment, too: nobody else knows it when the sandbox is
	// started.
	Record record `json:"record"`
	// Sizes are those of the files, in bytes.
	Sizes map[string]int64 `json:"sizes"`
}

// lock waits until nobody else, in any process, stops, starts or destroys the
// sandbox. The lock is given up by closing the file.
func (k keeper) lock(ctx context.Context, id sandpit.ID) (*os.File, error) {
	const longest = 50 * time.Millisecond
	for wait := time.Millisecond; ; wait = min(2*wait, longest) {
		f, err := k.tryLock(id)
		if err != nil || f != nil {
			return f, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// tryLock returns nil if somebody else has the lock. All locks are in one file that
// stays, each at a place of its own: a file for each would have to be removed while
// others wait for it.
func (k keeper) tryLock(id sandpit.ID) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(cmp.Or(k.locks, k.dir), keeperLock), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock what is kept: %w", err)
	}
	place := fnv.New64a()
	_, _ = io.WriteString(place, string(id)) // never fails
	err = unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{
		Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(place.Sum64() & (math.MaxInt64 >> 1)), Len: 1,
	})
	if err == nil {
		return f, nil
	}
	_ = f.Close()
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES) || errors.Is(err, unix.EINTR) {
		return nil, nil
	}
	return nil, fmt.Errorf("lock what is kept: %w", err)
}

func (k keeper) path(id sandpit.ID) string { return filepath.Join(k.dir, string(id)) }

// has reports whether the sandbox is stopped.
func (k keeper) has(id sandpit.ID) bool {
	if k.dir == "" {
		return false
	}
	_, err := os.Lstat(k.path(id))
	return err == nil
}

// list returns what is known of all stopped sandboxes.
func (k keeper) list() ([]record, error) {
	if k.dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return nil, fmt.Errorf("list the stopped sandboxes: %w", err)
	}
	var all []record
	for _, e := range entries {
		id := sandpit.ID(e.Name())
		if id.Validate() != nil {
			continue
		}
		found, err := k.read(id)
		if sandpit.CodeOf(err) == sandpit.NotFound {
			continue // started or destroyed meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, found.Record)
	}
	return all, nil
}

// read returns what is known of a stopped sandbox. NotFound: it is not stopped.
func (k keeper) read(id sandpit.ID) (kept, error) {
	var found kept
	f, err := os.Open(filepath.Join(k.path(id), keptRecord))
	if err != nil {
		return found, sandpit.Errorf(sandpit.CodeOf(err), "sandbox %s: %w", id, err)
	}
	defer f.Close()
	err = json.NewDecoder(io.LimitReader(f, maxKeptRecord)).Decode(&found)
	if err == nil && found.Record.ID != id {
		err = fmt.Errorf("it is of %q", string(found.Record.ID))
	}
	if err == nil && found.Format != keepFormat {
		err = fmt.Errorf("format %d, want %d", found.Format, keepFormat)
	}
	if err != nil {
		return found, sandpit.Errorf(sandpit.Internal, "what is kept of sandbox %s cannot be read: %w", id, err)
	}
	return found, nil
}

// keptFiles are the open files of a stopped sandbox.
type keptFiles struct {
	record record
	root   *os.File
	layer  []*os.File // in the order of layerFiles
	size   int64
	tree   int64 // bytes of the one that describes the tree
	renew  bool  // they are another sandbox's, too
}

func (f keptFiles) close() {
	if f.root != nil {
		_ = f.root.Close() // only read
	}
	closeAll(f.layer)
}

// open opens the files of a stopped sandbox. Who calls it has the lock.
func (k keeper) open(id sandpit.ID) (keptFiles, error) {
	var files keptFiles
	found, err := k.read(id)
	if err != nil {
		return files, err
	}
	files.record = found.Record
	for _, name := range append(layerFiles(), keptRoot) {
		f, err := os.Open(filepath.Join(k.path(id), name))
		if err != nil {
			files.close()
			return keptFiles{}, fmt.Errorf("open what is kept of sandbox %s: %w", id, err)
		}
		if name == keptRoot {
			files.root = f
		} else {
			files.layer = append(files.layer, f)
		}
		info, err := f.Stat()
		if err != nil || info.Size() != found.Sizes[name] {
			files.close()
			return keptFiles{}, sandpit.Errorf(sandpit.Internal, "what is kept of sandbox %s is damaged: %s has changed", id, name)
		}
		files.size += info.Size()
		if name == checkpointfiles.FSCheckpointMultiTarFileName {
			files.tree = info.Size()
		}
	}
	return files, nil
}

// forget ends that the sandbox is stopped, in one step, and returns the directory
// that is to be removed; "" if it was not. Who calls it has the lock.
func (k keeper) forget(id sandpit.ID) (half string, err error) {
	if !k.has(id) {
		return "", nil
	}
	half = halfName(k.path(id))
	if err := os.Rename(k.path(id), half); err != nil {
		return "", fmt.Errorf("remove what is kept of sandbox %s: %w", id, err)
	}
	return half, nil
}

// halfName returns a name that nothing has for a directory that is to be removed. No
// directory is made of that name first, which a full disk would not allow.
func halfName(path string) string { return path + "-" + strings.ToLower(rand.Text()) + halfSuffix }

// remove removes all of a stopped sandbox. Who calls it has the lock.
func (k keeper) remove(id sandpit.ID) error {
	half, err := k.forget(id)
	if err != nil || half == "" {
		return err
	}
	if err := os.RemoveAll(half); err != nil {
		return fmt.Errorf("remove what is kept of sandbox %s: %w", id, err)
	}
	return nil
}

// sweep removes what killed programs have left half-made.
func (k keeper) sweep() error {
	if k.dir == "" {
		return nil
	}
	entries, err := os.ReadDir(k.dir)
	if err != nil {
		return fmt.Errorf("look at what is kept: %w", err)
	}
	var errs []error
	for _, e := range entries {
		id, _, _ := strings.Cut(e.Name(), "-")
		if !strings.HasSuffix(e.Name(), halfSuffix) || sandpit.ID(id).Validate() != nil {
			continue
		}
		held, err := k.tryLock(sandpit.ID(id))
		if held == nil {
			errs = append(errs, err)
			continue // somebody is at it
		}
		errs = append(errs, os.RemoveAll(filepath.Join(k.dir, e.Name())), held.Close())
	}
	return errors.Join(errs...)
}
