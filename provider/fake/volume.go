package fake

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandpit-dev/sandpit"
)

var _ sandpit.VolumeKeeper = (*Provider)(nil)

func (w *World) volumesDir() string { return filepath.Join(w.dir, "volumes") }

// Volumes returns the names of all volumes.
func (w *World) Volumes() ([]string, error) {
	entries, err := os.ReadDir(w.volumesDir())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names, nil
}

// CreateVolume implements sandpit.VolumeKeeper.
func (p *Provider) CreateVolume(ctx context.Context, name string) error {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return err
	}
	err := p.performOp(ctx, OpCreateVolume, "", func() error { return os.MkdirAll(filepath.Join(p.world.volumesDir(), name), 0o700) })
	if err != nil {
		return fmt.Errorf("create volume %s: %w", name, err)
	}
	return nil
}

// RemoveVolume implements sandpit.VolumeKeeper.
func (p *Provider) RemoveVolume(ctx context.Context, name string) error {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return err
	}
	err := p.performOp(ctx, OpRemoveVolume, "", func() error {
		for _, b := range p.world.listSandboxes() {
			spec, _ := b.identityOf()
			if slices.ContainsFunc(spec.Mounts, func(m sandpit.Mount) bool { return m.Volume == name }) {
				return sandpit.Errorf(sandpit.Conflict, "sandbox %s uses it", b.id)
			}
		}
		return removeAll(filepath.Join(p.world.volumesDir(), name))
	})
	if err != nil {
		return fmt.Errorf("remove volume %s: %w", name, err)
	}
	return nil
}

// VolumeSize implements sandpit.VolumeKeeper. It counts the lengths of files, not their size on disk.
func (p *Provider) VolumeSize(ctx context.Context, name string) (size int64, err error) {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return 0, err
	}
	err = p.performOp(ctx, OpVolumeSize, "", func() error {
		return filepath.WalkDir(filepath.Join(p.world.volumesDir(), name), func(_ string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() {
				return err
			}
			info, err := e.Info()
			if err == nil {
				size += info.Size()
			}
			return err
		})
	})
	if err != nil {
		return 0, fmt.Errorf("measure volume %s: %w", name, err)
	}
	return size, nil
}

// showVolumes makes volumes and temporary directories visible in a sandbox.
func (b *sandbox) showVolumes() error {
	for _, m := range b.spec.Mounts {
		volume := filepath.Join(b.world.volumesDir(), m.Volume)
		if m.Temporary {
			volume = m.Source
		}
		if _, err := os.Lstat(volume); err != nil {
			return sandpit.Errorf(sandpit.CodeOf(err), "volume %q does not exist", m.Volume)
		}
		if m.Subpath != "" {
			var err error
			if volume, err = makeSubpath(volume, m.Subpath); err != nil {
				return err
			}
		}
		place := b.hostPath(m.Target)
		if err := os.MkdirAll(filepath.Dir(place), 0o700); err != nil {
			return err
		}
		if there, err := os.Readlink(place); err == nil && there == volume {
			continue // it came with the snapshot
		}
		if err := os.Symlink(volume, place); err != nil {
			return err
		}
	}
	return nil
}

// makeSubpath creates a directory in a volume, and returns its path. PermissionDenied: a part of it is
// a link.
func makeSubpath(volume, subpath string) (string, error) {
	root, err := filepath.EvalSymlinks(volume)
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, subpath)
	if err := os.MkdirAll(dir, 0o755); err != nil { //nolint:gosec // as the volume
		return "", err
	}
	if real, err := filepath.EvalSymlinks(dir); err != nil || real != dir {
		return "", sandpit.Errorf(sandpit.PermissionDenied, "subpath %q: a part of it is a link", subpath)
	}
	return dir, nil
}
