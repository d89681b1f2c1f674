package docker

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/api/types/mount"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

var _ sandpit.VolumeKeeper = (*Provider)(nil)

// partVolume is the value of labelPart on volumes from CreateVolume. An engine creates a missing
// volume that a container names; such a volume has no label.
const partVolume = "volume"

// volumeName returns the engine's name of a volume, which is different for each manager.
func (p *Provider) volumeName(name string) string {
	sum := sha256.Sum256([]byte(p.o.Manager))
	return "sandpit-volume-" + hex.EncodeToString(sum[:8]) + "-" + name
}

// volumeMount returns the mount of a volume. The image's files at the target are not copied into the
// volume, because its content must not depend on its first user.
func (p *Provider) volumeMount(m sandpit.Mount) mount.Mount {
	return mount.Mount{
		Type: mount.TypeVolume, Source: p.volumeName(m.Volume), Target: m.Target, ReadOnly: m.ReadOnly,
		VolumeOptions: &mount.VolumeOptions{NoCopy: true},
	}
}

// CreateVolume implements sandpit.VolumeKeeper.
func (p *Provider) CreateVolume(ctx context.Context, name string) error {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return err
	}
	limited, cancel := p.engine.callContext(ctx)
	defer cancel()
	_, err := p.engine.api.VolumeCreate(limited, client.VolumeCreateOptions{
		Name: p.volumeName(name), Driver: "local", Labels: map[string]string{labelManager: p.o.Manager, labelPart: partVolume},
	})
	if cerrdefs.IsAlreadyExists(err) { // Podman's response for an existing volume
		return nil
	}
	return p.engine.wrapError(ctx, "create volume "+name, err)
}

// RemoveVolume implements sandpit.VolumeKeeper.
func (p *Provider) RemoveVolume(ctx context.Context, name string) error {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return err
	}
	limited, cancel := p.engine.callContext(ctx)
	defer cancel()
	_, err := p.engine.api.VolumeRemove(limited, p.volumeName(name), client.VolumeRemoveOptions{})
	if isNotFound(err) {
		return nil
	}
	if cerrdefs.IsConflict(err) {
		return sandpit.Errorf(sandpit.Conflict, "volume %q is in use by a sandbox", name)
	}
	return p.engine.wrapError(ctx, "remove volume "+name, err)
}

// VolumeSize implements sandpit.VolumeKeeper. It is slow: an engine measures all of its volumes.
func (p *Provider) VolumeSize(ctx context.Context, name string) (int64, error) {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return 0, err
	}
	if there, err := p.hasVolume(ctx, name); err != nil || !there {
		return 0, errors.Join(err, noVolume(name, there))
	}
	limited, cancel := p.engine.callContext(ctx)
	defer cancel()
	res, err := p.engine.api.DiskUsage(limited, client.DiskUsageOptions{Volumes: true, Verbose: true})
	if err != nil {
		return 0, p.engine.wrapError(ctx, "measure volume "+name, err)
	}
	for _, v := range res.Volumes.Items {
		if v.Name == p.volumeName(name) && v.UsageData != nil && v.UsageData.Size >= 0 {
			return v.UsageData.Size, nil
		}
	}
	return 0, sandpit.Errorf(sandpit.Unsupported, "this docker engine does not measure volume %q", name)
}

func noVolume(name string, there bool) error {
	if there {
		return nil
	}
	return sandpit.Errorf(sandpit.NotFound, "volume %q does not exist", name)
}

// hasVolume reports whether CreateVolume created the volume and it still exists.
func (p *Provider) hasVolume(ctx context.Context, name string) (bool, error) {
	limited, cancel := p.engine.callContext(ctx)
	defer cancel()
	res, err := p.engine.api.VolumeInspect(limited, p.volumeName(name), client.VolumeInspectOptions{})
	if isNotFound(err) {
		return false, nil
	}
	labels := res.Volume.Labels
	return labels[labelManager] == p.o.Manager && labels[labelPart] == partVolume, p.engine.wrapError(ctx, "find volume "+name, err)
}

// checkVolumes checks that the volumes of a spec exist. NotFound: one does not.
func (p *Provider) checkVolumes(ctx context.Context, spec sandpit.Spec) error {
	for _, m := range spec.Mounts {
		if m.Volume == "" {
			continue
		}
		there, err := p.hasVolume(ctx, m.Volume)
		if err = errors.Join(err, noVolume(m.Volume, there || err != nil)); err != nil {
			return err
		}
	}
	return nil
}

// dropMade removes the volumes that the engine created for a container because those of the spec had
// just been removed.
func (p *Provider) dropMade(ctx context.Context, spec sandpit.Spec) error {
	clean, cancel := p.engine.cleanupContext(ctx)
	defer cancel()
	var errs []error
	for _, m := range spec.Mounts {
		if m.Volume == "" {
			continue
		}
		there, err := p.hasVolume(clean, m.Volume)
		if err == nil && !there {
			_, err = p.engine.api.VolumeRemove(clean, p.volumeName(m.Volume), client.VolumeRemoveOptions{})
		}
		if err != nil && !isNotFound(err) && !cerrdefs.IsConflict(err) { // a conflict: another container uses it
			errs = append(errs, fmt.Errorf("remove the engine's replacement of volume %q: %w", m.Volume, err))
		}
	}
	return errors.Join(errs...)
}
