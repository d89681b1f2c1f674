package gvisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
)

// keeping is a sandbox that is being stopped: files that are filled and then, all
// together, get the name under which they are found.
type keeping struct {
	keeper keeper
	id     sandpit.ID
	dir    string
	layer  []*os.File // in the order of layerFiles, empty at first
}

// begin makes the files for a layer. Who calls it has the lock, and calls discard.
func (k keeper) begin(id sandpit.ID) (*keeping, error) {
	dir, err := os.MkdirTemp(k.dir, string(id)+"-*"+halfSuffix)
	if err != nil {
		return nil, k.explain(fmt.Errorf("make room for what is kept: %w", err))
	}
	n := &keeping{keeper: k, id: id, dir: dir}
	names := layerFiles()
	for i, name := range names {
		direct := 0
		if i == len(names)-1 { // the only large one
			direct = unix.O_DIRECT
		}
		f, err := newKeptFile(filepath.Join(dir, name), direct)
		if err != nil {
			n.discard()
			return nil, k.explain(fmt.Errorf("make room for what is kept: %w", err))
		}
		n.layer = append(n.layer, f)
	}
	return n, nil
}

// newKeptFile makes an empty file. Where the file system has no direct writing it
// goes without.
func newKeptFile(path string, direct int) (*os.File, error) {
	const flags = os.O_CREATE | os.O_EXCL | os.O_RDWR
	f, err := os.OpenFile(path, flags|direct, 0o600)
	if direct != 0 && errors.Is(err, unix.EINVAL) {
		// The file may have been made all the same.
		f, err = os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	}
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(keptMode); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// commit puts everything onto the disk and gives it its name. From then on the
// sandbox is stopped.
func (n *keeping) commit(ctx context.Context, rec record, root *os.File) error {
	if err := n.write(rec, root); err != nil {
		return n.keeper.explain(fmt.Errorf("keep the files: %w", err))
	}
	if err := sandpit.AdmitOf(ctx)(ownBytes(n.dir)); err != nil {
		return err
	}
	replaced, err := n.keeper.name(n.dir, n.id)
	if err != nil {
		return n.keeper.explain(fmt.Errorf("keep the files: %w", err))
	}
	if !replaced {
		n.dir = ""
	}
	if err := syncPath(n.keeper.dir); err != nil {
		// Nobody can tell what a crash would leave, so it is not promised.
		return errors.Join(fmt.Errorf("keep the files: %w", err), n.keeper.remove(n.id))
	}
	return nil
}

// write fills the directory.
func (n *keeping) write(rec record, root *os.File) error {
	found := kept{Format: keepFormat, Record: rec, Sizes: make(map[string]int64)}
	for i, name := range layerFiles() {
		if err := n.layer[i].Sync(); err != nil {
			return err
		}
		info, err := n.layer[i].Stat()
		if err != nil {
			return err
		}
		found.Sizes[name] = info.Size()
	}
	size, err := keepRoot(root, filepath.Join(n.dir, keptRoot))
	if err != nil {
		return err
	}
	found.Sizes[keptRoot] = size
	data, err := json.Marshal(found)
	if err != nil {
		return err
	}
	if len(data) > maxKeptRecord {
		return sandpit.Errorf(sandpit.Exhausted, "its description has %d bytes, at most %d can be kept", len(data), maxKeptRecord)
	}
	if err := writeSynced(filepath.Join(n.dir, keptRecord), data); err != nil {
		return err
	}
	return syncPath(n.dir)
}

// discard removes what was not committed.
func (n *keeping) discard() {
	closeAll(n.layer)
	n.layer = nil
	if n.dir != "" {
		_ = os.RemoveAll(n.dir) // what stays is swept the next time
	}
}

// keepRoot has the image under a second name, so that no cache can make room by
// removing it: as a link where possible, else as a copy. It returns its size.
func keepRoot(root *os.File, path string) (int64, error) {
	info, err := root.Stat()
	if err != nil {
		return 0, err
	}
	err = unix.Linkat(unix.AT_FDCWD, descriptorPath(root, ""), unix.AT_FDCWD, path, unix.AT_SYMLINK_FOLLOW)
	if err == nil {
		return info.Size(), nil
	}
	// Another file system, an image that was removed from the cache, or one that
	// may have no more names.
	f, err := newKeptFile(path, 0)
	if err != nil {
		return 0, err
	}
	// Others read by the same descriptor, and have its position.
	_, err = io.Copy(f, io.NewSectionReader(root, 0, info.Size()))
	if err == nil {
		err = f.Sync()
	}
	return info.Size(), errors.Join(err, f.Close())
}

func writeSynced(path string, data []byte) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// syncPath has the disk know the entries of a directory.
func syncPath(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// explain adds what a person can do about a full disk. An error that the sandbox's
// kernel tells comes as mere text: so it is tried whether there is room.
func (k keeper) explain(err error) error {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || k.full() {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "%w", err),
			"make room on the disk of "+k.dir+", or delete sandboxes that are stopped")
	}
	return err
}

// full reports whether not even a little more can be written.
func (k keeper) full() bool {
	const little = 1 << 20
	fd, err := unix.Open(k.dir, unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err == nil {
		err = unix.Fallocate(fd, 0, 0, little)
		_ = unix.Close(fd) // which removes it
	}
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}
