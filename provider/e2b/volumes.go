package e2b

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"slices"

	"github.com/sandpit-dev/sandpit"
)

var _ sandpit.VolumeKeeper = (*Provider)(nil)

// cloudVolume is a volume as the API describes it.
type cloudVolume struct {
	ID   string `json:"volumeID"`
	Name string `json:"name"`
}

// volumeName returns the cloud's name of a volume, which differs for each server. The cloud allows fewer characters.
func (p *Provider) volumeName(name string) string {
	sum := sha256.Sum256([]byte(p.o.Identity + "/" + name))
	return "sandpit-" + hex.EncodeToString(sum[:16])
}

// findVolume returns the cloud's ID of a volume. NotFound.
func (p *Provider) findVolume(ctx context.Context, name string) (string, error) {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return "", err
	}
	all, err := p.api.listVolumes(ctx)
	if err != nil {
		return "", err
	}
	i := slices.IndexFunc(all, func(v cloudVolume) bool { return v.Name == p.volumeName(name) })
	if i < 0 {
		return "", sandpit.Errorf(sandpit.NotFound, "volume %q does not exist", name)
	}
	return all[i].ID, nil
}

// CreateVolume implements sandpit.VolumeKeeper.
func (p *Provider) CreateVolume(ctx context.Context, name string) error {
	_, err := p.findVolume(ctx, name)
	if sandpit.CodeOf(err) != sandpit.NotFound {
		return err
	}
	err = p.api.createVolume(ctx, p.volumeName(name))
	if code := sandpit.CodeOf(err); code == sandpit.Conflict || code == sandpit.AlreadyExists {
		return nil // another call has just created it
	}
	return err
}

// RemoveVolume implements sandpit.VolumeKeeper.
func (p *Provider) RemoveVolume(ctx context.Context, name string) error {
	cloudID, err := p.findVolume(ctx, name)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	return p.api.deleteVolume(ctx, cloudID)
}

// VolumeSize implements sandpit.VolumeKeeper.
func (p *Provider) VolumeSize(ctx context.Context, name string) (int64, error) {
	if _, err := p.findVolume(ctx, name); err != nil {
		return 0, err
	}
	return 0, sandpit.Errorf(sandpit.Unsupported, "E2B does not measure volume %q", name)
}

// checkMounts refuses mounts that E2B does not have.
func checkMounts(mounts []sandpit.Mount) error {
	for _, m := range mounts {
		switch {
		case m.Volume == "":
			return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "mount %q: sandboxes of E2B are on other machines and cannot show files of this one", m.Target),
				"copy the files with: sandpit cp")
		case m.Subpath != "":
			return sandpit.Errorf(sandpit.Unsupported, "mount of volume %q on %s: E2B cannot mount a directory of a volume", m.Volume, m.Target)
		case m.ReadOnly:
			return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "mount of volume %q on %s: E2B cannot mount volumes read-only", m.Volume, m.Target),
				"omit read-only")
		}
	}
	return nil
}

// toVolumeMounts converts the mounts of a spec. NotFound: a volume does not exist.
func (p *Provider) toVolumeMounts(ctx context.Context, mounts []sandpit.Mount) ([]volumeMount, error) {
	var all []volumeMount
	for _, m := range mounts {
		if _, err := p.findVolume(ctx, m.Volume); err != nil {
			return nil, err
		}
		all = append(all, volumeMount{p.volumeName(m.Volume), m.Target})
	}
	return all, nil
}
