package daytona

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

var _ sandpit.VolumeKeeper = (*Provider)(nil)

// volume is a volume as the API describes it.
type volume struct {
	ID    string `json:"id"`
	Name  string `json:"name"`
	State string `json:"state"`
	Error string `json:"errorReason"`
}

// prefix begins the names of what this provider creates in the account besides sandboxes: it differs
// for each manager.
func (p *Provider) prefix() string {
	sum := sha256.Sum256([]byte(p.o.Manager))
	return "sandpit-" + hex.EncodeToString(sum[:6]) + "-"
}

// findVolume returns a volume. NotFound.
func (p *Provider) findVolume(ctx context.Context, name string) (v volume, err error) {
	err = p.control.getInto(ctx, "find volume "+name, "/volumes/by-name/"+url.PathEscape(p.prefix()+name), &v)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		err = sandpit.Errorf(sandpit.NotFound, "volume %q does not exist", name)
	}
	return v, err
}

// CreateVolume implements sandpit.VolumeKeeper.
func (p *Provider) CreateVolume(ctx context.Context, name string) error {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return err
	}
	if _, err := p.findVolume(ctx, name); sandpit.CodeOf(err) != sandpit.NotFound {
		if err != nil {
			return err
		}
		_, err = p.awaitVolume(ctx, name)
		return err
	}
	err := p.control.call(ctx, cloudapi.Call{
		Operation: "create volume " + name, Method: http.MethodPost, Path: "/volumes", Body: map[string]string{"name": p.prefix() + name},
	})
	if code := sandpit.CodeOf(err); err != nil && code != sandpit.Conflict && code != sandpit.AlreadyExists {
		return err
	}
	_, err = p.awaitVolume(ctx, name)
	return err
}

// awaitVolume waits until a volume can be mounted.
func (p *Provider) awaitVolume(ctx context.Context, name string) (volume, error) {
	limited, cancel := context.WithTimeout(ctx, p.o.StartTimeout)
	defer cancel()
	for {
		v, err := p.findVolume(limited, name)
		switch {
		case err != nil:
			return v, err
		case v.State == "ready" || v.State == "":
			return v, nil
		case v.State == "error":
			return v, sandpit.Errorf(sandpit.Unavailable, "volume %q: Daytona cannot create it: %s", name, cleanText(v.Error))
		case v.State == "deleting" || v.State == "deleted" || v.State == "pending_delete":
			return v, sandpit.Errorf(sandpit.NotFound, "volume %q is being deleted", name)
		}
		select {
		case <-afterLook():
		case <-limited.Done():
			return v, sandpit.Errorf(sandpit.Timeout, "volume %q is still %.40q at Daytona", name, v.State)
		}
	}
}

// RemoveVolume implements sandpit.VolumeKeeper.
func (p *Provider) RemoveVolume(ctx context.Context, name string) error {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return err
	}
	v, err := p.findVolume(ctx, name)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	err = p.control.call(ctx, cloudapi.Call{
		Operation: "remove volume " + name, Method: http.MethodDelete, Path: "/volumes/" + url.PathEscape(v.ID), Expected: []int{http.StatusNotFound},
	})
	if sandpit.CodeOf(err) == sandpit.Conflict {
		return sandpit.Errorf(sandpit.Conflict, "volume %q is in use by a sandbox", name)
	}
	if err != nil {
		return err
	}
	return p.awaitRemoval(ctx, name)
}

// awaitRemoval waits until a volume is gone, so that its name is free.
func (p *Provider) awaitRemoval(ctx context.Context, name string) error {
	end := time.Now().Add(p.o.StartTimeout)
	for {
		v, err := p.findVolume(ctx, name)
		switch {
		case sandpit.CodeOf(err) == sandpit.NotFound, err == nil && v.State == "deleted":
			return nil
		case err != nil:
			return err
		case time.Now().After(end):
			return sandpit.Errorf(sandpit.Timeout, "volume %q is still %.40q at Daytona", name, v.State)
		}
		select {
		case <-afterLook():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// VolumeSize implements sandpit.VolumeKeeper.
func (p *Provider) VolumeSize(ctx context.Context, name string) (int64, error) {
	if err := sandpit.CheckVolumeName(name); err != nil {
		return 0, err
	}
	if _, err := p.findVolume(ctx, name); err != nil {
		return 0, err
	}
	return 0, sandpit.Errorf(sandpit.Unsupported, "Daytona does not measure volume %q", name)
}

// findMounts converts the mounts of a spec. NotFound: a volume does not exist.
func (p *Provider) findMounts(ctx context.Context, mounts []sandpit.Mount) ([]volumeMount, error) {
	all := make([]volumeMount, 0, len(mounts))
	for _, m := range mounts {
		v, err := p.awaitVolume(ctx, m.Volume)
		if err != nil {
			return nil, err
		}
		all = append(all, volumeMount{v.ID, m.Target})
	}
	return all, nil
}
