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

// partVolume is the value of labelPart on volumes that were made by CreateVolume. An
// engine makes any volume that a container names and that is not there; such a one has
// no label.
const partVolume = "volume"

// volumeName is what the engine calls a volume. Several managers may use an engine, and
// the same names.
func (p *Provider) volumeName(name string) string {
	sum := sha256.Sum256([]byte(p.o.Manager))
	return "sandpit-volume-" + hex.EncodeToString(sum[:8]) + "-" + name
}

// volumeMount shows a volume in a container. What the image has at that place is not
// copied into it: what a volume holds shall not depend on who has it first.
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
	limited, cancel := p.callContext(ctx)
	defer cancel()
	_, err := p.api.VolumeCreate(limited, client.VolumeCreateOptions{
		Name: p.volumeName(name), Driver: "local", Labels: map[string]string{labelManager: p.o.Manager, labelPart: partVolume},
	})
	if cerrdefs.IsAlreadyExists(err) { // as Podman tells it
		return nil
	}
	return p.engineError(ctx, "make volume "+name, err)
}

// RemoveVolume implements sandpit.VolumeKeeper.
func (p *Provider) RemoveVolume(ctx context.Context, name string) error {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return err
	}
	limited, cancel := p.callContext(ctx)
	defer cancel()
	_, err := p.api.VolumeRemove(limited, p.volumeName(name), client.VolumeRemoveOptions{})
	if isNotFound(err) {
		return nil
	}
	if cerrdefs.IsConflict(err) {
		return sandpit.Errorf(sandpit.Conflict, "volume %s: a sandbox has it", name)
	}
	return p.engineError(ctx, "remove volume "+name, err)
}

// VolumeSize implements sandpit.VolumeKeeper. Engines count all of their volumes to
// tell of one.
func (p *Provider) VolumeSize(ctx context.Context, name string) (int64, error) {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return 0, err
	}
	if there, err := p.hasVolume(ctx, name); err != nil || !there {
		return 0, errors.Join(err, noVolume(name, there))
	}
	limited, cancel := p.callContext(ctx)
	defer cancel()
	res, err := p.api.DiskUsage(limited, client.DiskUsageOptions{Volumes: true, Verbose: true})
	if err != nil {
		return 0, p.engineError(ctx, "count the bytes of volume "+name, err)
	}
	for _, v := range res.Volumes.Items {
		if v.Name == p.volumeName(name) && v.UsageData != nil && v.UsageData.Size >= 0 {
			return v.UsageData.Size, nil
		}
	}
	return 0, sandpit.Errorf(sandpit.Unsupported, "this docker engine does not count the bytes of volume %s", name)
}

func noVolume(name string, there bool) error {
	if there {
		return nil
	}
	return sandpit.Errorf(sandpit.NotFound, "there is no volume %s", name)
}

// hasVolume reports whether a volume was made, and not removed since.
func (p *Provider) hasVolume(ctx context.Context, name string) (bool, error) {
	limited, cancel := p.callContext(ctx)
	defer cancel()
	res, err := p.api.VolumeInspect(limited, p.volumeName(name), client.VolumeInspectOptions{})
	if isNotFound(err) {
		return false, nil
	}
	labels := res.Volume.Labels
	return labels[labelManager] == p.o.Manager && labels[labelPart] == partVolume, p.engineError(ctx, "look for volume "+name, err)
}

// checkVolumes sees that a sandbox's volumes were made. NotFound.
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

// dropMade removes what the engine has made by itself in place of a volume that was
// removed when a container named it.
func (p *Provider) dropMade(ctx context.Context, spec sandpit.Spec) error {
	clean, cancel := p.cleanupContext(ctx)
	defer cancel()
	var errs []error
	for _, m := range spec.Mounts {
		if m.Volume == "" {
			continue
		}
		there, err := p.hasVolume(clean, m.Volume)
		if err == nil && !there {
			_, err = p.api.VolumeRemove(clean, p.volumeName(m.Volume), client.VolumeRemoveOptions{})
		}
		if err != nil && !isNotFound(err) && !cerrdefs.IsConflict(err) { // in use: somebody else is about the same
			errs = append(errs, fmt.Errorf("remove what the engine made of volume %s: %w", m.Volume, err))
		}
	}
	return errors.Join(errs...)
}
