package gvisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/beneath"
)

var _ sandpit.VolumeKeeper = (*Provider)(nil)

// A volume is a directory in Config.VolumeDir, which is closed to other users of the machine:
// sandboxes may write programs there that run as their owner. Removing a volume needs the
// exclusive lock of VolumeDir; creating a sandbox with volumes shares the lock until the
// sandbox's record is written.

// removedPrefix begins the names of volumes that are being removed. It is not valid in the name of
// a volume.
const removedPrefix = ".removed-"

func (p *Provider) volumePath(name string) string { return filepath.Join(p.cfg.VolumeDir, name) }

// lockVolumes returns a lock that the caller closes.
func (p *Provider) lockVolumes(how int) (*os.File, error) {
	if p.cfg.VolumeDir == "" {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "volumes are kept by a server"),
			"create the volume with: sandpit volume create NAME, and the sandbox with: sandpit create -v NAME:/path")
	}
	lock, err := lockFile(p.cfg.VolumeDir, how)
	if err != nil {
		return nil, fmt.Errorf("lock the volumes: %w", err)
	}
	return lock, nil
}

// CreateVolume implements sandpit.VolumeKeeper.
func (p *Provider) CreateVolume(_ context.Context, name string) error {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return err
	}
	lock, err := p.lockVolumes(unix.LOCK_SH)
	if err != nil {
		return err
	}
	defer lock.Close()
	err = os.Mkdir(p.volumePath(name), 0o755) //nolint:gosec // the directory above is closed to others
	if err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("create volume %s: %w", name, err)
	}
	return nil
}

// RemoveVolume implements sandpit.VolumeKeeper.
func (p *Provider) RemoveVolume(ctx context.Context, name string) error {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return err
	}
	if err := p.hideVolume(ctx, name); err != nil {
		return err
	}
	dir, err := beneath.Open(p.cfg.VolumeDir)
	if err != nil {
		return fmt.Errorf("remove volume %s: %w", name, err)
	}
	defer dir.Close()
	if err := dir.RemoveTree(ctx, removedPrefix+name); err != nil {
		return fmt.Errorf("remove volume %s: %w", name, err)
	}
	return nil
}

// hideVolume renames a volume so that no sandbox finds it.
func (p *Provider) hideVolume(ctx context.Context, name string) error {
	lock, err := p.lockVolumes(unix.LOCK_EX)
	if err != nil {
		return err
	}
	defer lock.Close()
	if err := p.checkVolumeUnused(ctx, name); err != nil {
		return err
	}
	// If an earlier removal left a directory with that name, the volume is moved into it.
	hidden := p.volumePath(removedPrefix + name)
	err = unix.Rename(p.volumePath(name), hidden)
	if errors.Is(err, unix.ENOTEMPTY) || errors.Is(err, unix.EEXIST) {
		err = unix.Rename(p.volumePath(name), filepath.Join(hidden, string(sandpit.NewID())))
	}
	if err != nil && !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("remove volume %s: %w", name, err)
	}
	return nil
}

// checkVolumeUnused returns a Conflict if a sandbox has the volume, whether it runs, or is stopped,
// suspended or archived.
func (p *Provider) checkVolumeUnused(ctx context.Context, name string) error {
	list, err := p.List(ctx)
	if err != nil {
		return err
	}
	for _, one := range list {
		if slices.ContainsFunc(one.Spec.Mounts, func(m sandpit.Mount) bool { return m.Volume == name }) {
			return sandpit.Errorf(sandpit.Conflict, "volume %s is used by sandbox %s", name, one.ID)
		}
	}
	return nil
}

// lockVolumesOf prevents the removal of the volumes of a sandbox that is being created until the
// lock is closed. Nil: it has no volumes.
func (p *Provider) lockVolumesOf(spec sandpit.Spec) (*os.File, error) {
	if !slices.ContainsFunc(spec.Mounts, func(m sandpit.Mount) bool { return m.Volume != "" }) {
		return nil, nil //nolint:nilnil // nothing to lock
	}
	lock, err := p.lockVolumes(unix.LOCK_SH)
	if err != nil {
		return nil, err
	}
	for _, m := range spec.Mounts {
		if m.Volume == "" {
			continue
		}
		info, err := os.Lstat(p.volumePath(m.Volume))
		if err == nil && info.IsDir() {
			continue
		}
		_ = lock.Close()
		return nil, sandpit.Errorf(sandpit.NotFound, "volume %s does not exist", m.Volume)
	}
	return lock, nil
}

// makeSubpath creates the directory of a volume that a mount shows, and returns its path without
// links. Sandboxes change the volume, so the caller must open the path without following links.
//
// PermissionDenied: a part of it is a link. Conflict: it is no directory.
func (p *Provider) makeSubpath(m sandpit.Mount) (string, error) {
	volume, err := filepath.EvalSymlinks(p.volumePath(m.Volume))
	if err != nil {
		return "", fmt.Errorf("open volume %s: %w", m.Volume, err)
	}
	fd, err := unix.Open(volume, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", fmt.Errorf("open volume %s: %w", m.Volume, err)
	}
	dir := os.NewFile(uintptr(fd), volume)
	defer func() { _ = dir.Close() }()
	for name := range strings.SplitSeq(m.Subpath, "/") {
		err := unix.Mkdirat(int(dir.Fd()), name, 0o755)
		if errors.Is(err, unix.ENAMETOOLONG) {
			return "", sandpit.Errorf(sandpit.Invalid, "subpath %.200q of volume %s: a name is too long", m.Subpath, m.Volume)
		}
		if err != nil && !errors.Is(err, unix.EEXIST) {
			return "", fmt.Errorf("create %s in volume %s: %w", m.Subpath, m.Volume, err)
		}
		next, err := unix.Openat2(int(dir.Fd()), name, &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC, Resolve: unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV,
		})
		switch {
		case errors.Is(err, unix.ELOOP):
			return "", sandpit.Errorf(sandpit.PermissionDenied, "subpath %s of volume %s: a part of it is a symbolic link", m.Subpath, m.Volume)
		case errors.Is(err, unix.ENOTDIR):
			return "", sandpit.Errorf(sandpit.Conflict, "subpath %s of volume %s: a part of it is no directory", m.Subpath, m.Volume)
		case err != nil:
			return "", fmt.Errorf("open %s in volume %s: %w", m.Subpath, m.Volume, err)
		}
		_ = dir.Close()
		dir = os.NewFile(uintptr(next), name)
	}
	return filepath.Join(volume, m.Subpath), nil
}

// Bounds of counting: the content of a volume is untrusted.
const (
	maxVolumeFiles = 2_000_000
	maxVolumeDepth = 1000
)

// VolumeSize implements sandpit.VolumeKeeper. It takes longer the more files there are.
func (p *Provider) VolumeSize(ctx context.Context, name string) (int64, error) {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return 0, err
	}
	if p.cfg.VolumeDir == "" {
		return 0, sandpit.Errorf(sandpit.NotFound, "volume %s does not exist", name)
	}
	fd, err := beneath.OpenDirAt(unix.AT_FDCWD, p.volumePath(name))
	if err != nil {
		return 0, sandpit.Errorf(sandpit.CodeOf(err), "count the bytes of volume %s: %w", name, err)
	}
	c := byteCount{seen: make(map[inode]bool)}
	if err := c.addDir(ctx, fd, 0); err != nil {
		return 0, fmt.Errorf("count the bytes of volume %s: %w", name, err)
	}
	return c.bytes, nil
}

// byteCount adds up how many bytes files have on disk.
type byteCount struct {
	bytes int64
	files int
	seen  map[inode]bool // of files with several names
}

type inode struct{ dev, number uint64 }

// addDir adds what is in a directory, and closes it.
func (c *byteCount) addDir(ctx context.Context, fd, depth int) error {
	dir := os.NewFile(uintptr(fd), "volume")
	defer dir.Close()
	if depth > maxVolumeDepth {
		return sandpit.Errorf(sandpit.Exhausted, "directories are nested more than %d times", maxVolumeDepth)
	}
	const batch = 1024
	for {
		names, err := dir.Readdirnames(batch)
		for _, name := range names {
			if err := c.addEntry(ctx, fd, name, depth); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return ctx.Err()
		}
		if err != nil {
			return err
		}
	}
}

// addEntry adds one file, or a directory with everything below.
func (c *byteCount) addEntry(ctx context.Context, dir int, name string, depth int) error {
	if c.files++; c.files > maxVolumeFiles {
		return sandpit.Errorf(sandpit.Exhausted, "there are more than %d files", maxVolumeFiles)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Fstatat(dir, name, &st, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	isDir := st.Mode&unix.S_IFMT == unix.S_IFDIR
	if !isDir && st.Nlink > 1 {
		id := inode{st.Dev, st.Ino}
		if c.seen[id] {
			return nil
		}
		c.seen[id] = true
	}
	c.bytes += st.Blocks * 512 // the kernel's unit, whatever the file system's
	if !isDir {
		return nil
	}
	fd, err := beneath.OpenDirAt(dir, name)
	if err != nil {
		return err
	}
	return c.addDir(ctx, fd, depth+1)
}
