package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
	"gvisor.dev/gvisor/pkg/sentry/state/checkpointfiles"

	"github.com/sandpit-dev/sandpit"
)

// deposit is a saved kernel in the making: files that are filled and then, all together,
// get the name under which they are found.
type deposit struct {
	vault vault
	name  string
	dir   string
	held  *os.File            // the locked directory
	files map[string]*os.File // by name, empty at first
	// replaces says that there is one of the name, and that it makes room.
	replaces bool
}

// begin makes empty files of the names. Who calls it calls discard.
func (v vault) begin(name string, names []string) (*deposit, error) {
	d := &deposit{vault: v, name: name, files: make(map[string]*os.File)}
	if err := d.make(names); err != nil {
		d.discard()
		return nil, v.explain(fmt.Errorf("make room for %s %s: %w", v.what, name, err))
	}
	return d, nil
}

func (d *deposit) make(names []string) error {
	var err error
	if d.dir, err = os.MkdirTemp(d.vault.dir, d.name+"-*"+halfSuffix); err != nil {
		return err
	}
	if d.held, err = lockFile(d.dir, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return err
	}
	for _, name := range names {
		direct := 0
		if strings.HasSuffix(name, checkpointfiles.PagesFileName) { // the only large ones, in whole pages
			direct = unix.O_DIRECT
		}
		if d.files[name], err = newKeptFile(filepath.Join(d.dir, name), direct); err != nil {
			return err
		}
	}
	return nil
}

// in returns the files of the names, in their order.
func (d *deposit) in(names []string) []*os.File {
	list := make([]*os.File, len(names))
	for i, name := range names {
		list[i] = d.files[name]
	}
	return list
}

// commit puts everything onto the disk and gives it its name.
//
// AlreadyExists: that is in use.
func (d *deposit) commit(ctx context.Context, m manifest, root, guest *os.File) (manifest, error) {
	m, err := d.write(m, root, guest)
	if err == nil {
		if err := sandpit.AdmitOf(ctx)(ownBytes(d.dir)); err != nil {
			return m, err
		}
		err = d.publish()
	}
	if err != nil {
		return m, d.vault.explain(fmt.Errorf("keep %s %s: %w", d.vault.what, d.name, err))
	}
	return m, nil
}

// publish gives the directory its name.
func (d *deposit) publish() error {
	if d.replaces {
		return d.exchange()
	}
	err := unix.Renameat2(unix.AT_FDCWD, d.dir, unix.AT_FDCWD, d.vault.path(d.name), unix.RENAME_NOREPLACE)
	if errors.Is(err, unix.EEXIST) {
		return sandpit.Errorf(sandpit.AlreadyExists, "there is one already")
	}
	if err != nil {
		return err
	}
	d.dir = ""
	if err := syncPath(d.vault.dir); err != nil {
		// Nobody can tell what a crash would leave, so it is not promised.
		return errors.Join(err, d.vault.remove(d.name))
	}
	return nil
}

// exchange gives the directory the name of another one, which discard removes. A crash
// leaves one of both, and both are complete.
func (d *deposit) exchange() error {
	err := unix.Renameat2(unix.AT_FDCWD, d.dir, unix.AT_FDCWD, d.vault.path(d.name), unix.RENAME_EXCHANGE)
	if err != nil {
		return err
	}
	return syncPath(d.vault.dir)
}

// write fills the directory.
func (d *deposit) write(m manifest, root, guest *os.File) (manifest, error) {
	m.Format, m.Sizes = savedFormat, make(map[string]int64)
	for name, f := range d.files {
		if err := f.Sync(); err != nil {
			return m, err
		}
		info, err := f.Stat()
		if err != nil {
			return m, err
		}
		m.Sizes[name] = info.Size()
	}
	for name, f := range map[string]*os.File{savedRoot: root, savedGuest: guest} {
		if f == nil {
			continue // it was written as the others
		}
		size, err := keepRoot(f, filepath.Join(d.dir, name))
		if err != nil {
			return m, err
		}
		m.Sizes[name] = size
	}
	data, err := json.Marshal(m)
	if err != nil {
		return m, err
	}
	if len(data) > maxManifest {
		return m, sandpit.Errorf(sandpit.Exhausted, "its description has %d bytes, at most %d can be kept", len(data), maxManifest)
	}
	if err := writeSynced(filepath.Join(d.dir, manifestName), data); err != nil {
		return m, err
	}
	return m, syncPath(d.dir)
}

// discard removes what was not committed.
func (d *deposit) discard() {
	for _, f := range d.files {
		if f != nil {
			_ = f.Close() // synced before it counts
		}
	}
	d.files = nil
	if d.dir != "" {
		_ = os.RemoveAll(d.dir) // what stays is swept the next time
	}
	if d.held != nil {
		_ = d.held.Close() // only locked
	}
}

// explain adds what a person can do about a full disk.
func (v vault) explain(err error) error { return keeper{dir: v.dir}.explain(err) }
