package gvisor

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
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"

	"github.com/sandpit-dev/sandpit"
)

// vault has saved kernels: sandboxes with their memory, a directory for each. As with a
// keeper's, a directory gets its name when everything in it is on the disk, and so is
// never found half-made.
type vault struct {
	dir   string             // "" saves nothing
	what  string             // is in it, for people
	valid func(string) error // refuses what is no name of one
}

const (
	manifestName = "manifest.json"
	savedRoot    = "root.erofs"
	savedGuest   = "guest.erofs"
	layerPrefix  = "layer-" // of the names in layerFiles, where they stand beside those in stateFiles
	maxManifest  = maxKeptRecord

	// savedFormat counts what must be equal for a kernel to be loaded, besides the
	// version of gVisor: where its conduit is, and how it is held and let go.
	savedFormat = 1
)

// stateFiles are the names that gVisor gives to the files that a kernel is saved in.
func stateFiles() []string {
	return []string{checkpointfiles.StateFileName, checkpointfiles.PagesMetadataFileName, checkpointfiles.PagesFileName}
}

// snapshotFiles are the names of all that a kernel writes for a snapshot.
func snapshotFiles() []string {
	names := stateFiles()
	for _, name := range layerFiles() {
		names = append(names, layerPrefix+name)
	}
	return names
}

// manifest is what is written of a saved kernel beside its files.
type manifest struct {
	Format int `json:"format"`
	// Engine is what can load it.
	Engine string `json:"engine"`
	// Record is that of the sandbox. A suspended one's has its key and environment, as
	// nobody else knows them then; a snapshot's has neither.
	Record record `json:"record"`
	// Bare says that there is no memory in it.
	Bare bool `json:"bare,omitempty"`
	// Decisions are a suspended sandbox's network log.
	Decisions []sandpit.NetworkDecision `json:"decisions,omitempty"`
	// SavedAt is when.
	SavedAt time.Time `json:"saved_at"`
	// Sizes are those of the files, in bytes.
	Sizes map[string]int64 `json:"sizes"`
}

// size is how many bytes of disk it takes, but for the image and the guest, which others
// have too.
func (m manifest) size() int64 {
	var sum int64
	for name, n := range m.Sizes {
		if name != savedRoot && name != savedGuest {
			sum += n
		}
	}
	return sum
}

func (v vault) path(name string) string { return filepath.Join(v.dir, name) }

// has reports whether there is one of a name.
func (v vault) has(name string) bool {
	if v.dir == "" || v.valid(name) != nil {
		return false
	}
	_, err := os.Lstat(v.path(name))
	return err == nil
}

// list returns the manifests of all, by their names.
func (v vault) list() (map[string]manifest, error) {
	if v.dir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		return nil, fmt.Errorf("list %ss: %w", v.what, err)
	}
	all := make(map[string]manifest)
	for _, e := range entries {
		if v.valid(e.Name()) != nil {
			continue
		}
		m, err := v.read(e.Name())
		if sandpit.CodeOf(err) == sandpit.NotFound {
			continue // removed meanwhile
		}
		if err != nil {
			return nil, err
		}
		all[e.Name()] = m
	}
	return all, nil
}

// read returns what is known of one. NotFound.
func (v vault) read(name string) (manifest, error) {
	var m manifest
	if v.dir == "" || v.valid(name) != nil {
		return m, sandpit.Errorf(sandpit.NotFound, "there is no %s %s", v.what, name)
	}
	f, err := os.Open(filepath.Join(v.path(name), manifestName))
	if errors.Is(err, os.ErrNotExist) {
		return m, sandpit.Errorf(sandpit.NotFound, "there is no %s %s", v.what, name)
	}
	if err != nil {
		return m, fmt.Errorf("read %s %s: %w", v.what, name, err)
	}
	defer f.Close()
	if err := json.NewDecoder(io.LimitReader(f, maxManifest)).Decode(&m); err != nil {
		return m, sandpit.Errorf(sandpit.Internal, "%s %s cannot be read: %w", v.what, name, err)
	}
	return m, nil
}

// savedFiles are the open files of a saved kernel.
type savedFiles struct {
	manifest manifest
	root     *os.File
	guest    *os.File
	state    []*os.File // in the order of stateFiles
}

func (f savedFiles) close() {
	for _, one := range []*os.File{f.root, f.guest} {
		if one != nil {
			_ = one.Close() // only read
		}
	}
	closeAll(f.state)
}

// open opens the files of one, and checks that they are complete.
func (v vault) open(name string) (savedFiles, error) {
	var files savedFiles
	var err error
	if files.manifest, err = v.read(name); err != nil {
		return files, err
	}
	for _, entry := range append(stateFiles(), savedRoot, savedGuest) {
		f, err := v.openFile(name, entry, files.manifest)
		if err != nil {
			files.close()
			return savedFiles{}, err
		}
		switch entry {
		case savedRoot:
			files.root = f
		case savedGuest:
			files.guest = f
		default:
			files.state = append(files.state, f)
		}
	}
	return files, nil
}

// openFile opens one file of one.
func (v vault) openFile(name, entry string, m manifest) (*os.File, error) {
	f, err := os.Open(filepath.Join(v.path(name), entry))
	if err != nil {
		return nil, fmt.Errorf("open %s %s: %w", v.what, name, err)
	}
	info, err := f.Stat()
	if err == nil && (!info.Mode().IsRegular() || info.Size() != m.Sizes[entry]) {
		err = sandpit.Errorf(sandpit.Internal, "%s %s is damaged: %s has changed", v.what, name, entry)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// forget ends that there is one of a name, in one step, and returns the directory that is
// to be removed; "" if there was none.
func (v vault) forget(name string) (half string, err error) {
	if !v.has(name) {
		return "", nil
	}
	half = halfName(v.path(name))
	err = os.Rename(v.path(name), half)
	if errors.Is(err, unix.ENOENT) { // somebody else was quicker
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("remove %s %s: %w", v.what, name, err)
	}
	return half, nil
}

// remove removes one, if it is there.
func (v vault) remove(name string) error {
	half, err := v.forget(name)
	if err != nil || half == "" {
		return err
	}
	if err := os.RemoveAll(half); err != nil {
		return fmt.Errorf("remove %s %s: %w", v.what, name, err)
	}
	return nil
}

// sweep removes what killed programs have left half-made. What is being made is locked.
func (v vault) sweep() error {
	if v.dir == "" {
		return nil
	}
	if err := os.Mkdir(v.dir, 0o700); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("make the directory of %ss: %w", v.what, err)
	}
	entries, err := os.ReadDir(v.dir)
	if err != nil {
		return fmt.Errorf("look for %ss: %w", v.what, err)
	}
	var errs []error
	for _, e := range entries {
		name, _, _ := strings.Cut(e.Name(), "-")
		if !strings.HasSuffix(e.Name(), halfSuffix) || v.valid(name) != nil {
			continue
		}
		held, err := lockFile(v.path(e.Name()), unix.LOCK_EX|unix.LOCK_NB)
		if err != nil {
			continue // somebody is at it, or was
		}
		errs = append(errs, os.RemoveAll(v.path(e.Name())), held.Close())
	}
	return errors.Join(errs...)
}
