package docker

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	cerrdefs "github.com/containerd/errdefs"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
)

// Create implements sandpit.Provider.
func (p *Provider) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	if err := errors.Join(id.Validate(), p.validateSpec(spec)); err != nil {
		return nil, err
	}
	inst, err := p.createSandbox(ctx, id, spec.Clone())
	if err != nil {
		return nil, fmt.Errorf("create sandbox: %w", err)
	}
	return inst, nil
}

func (p *Provider) createSandbox(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (*Instance, error) {
	if err := p.events.checkReachable(ctx); err != nil {
		return nil, err
	}
	if err := p.events.startFollowing(ctx); err != nil {
		return nil, err
	}
	spec, err := p.specOfSnapshot(ctx, spec)
	if err == nil {
		err = p.validateSpec(spec) // with the fields from the snapshot
	}
	if err != nil {
		return nil, err
	}
	img, err := p.images.findImage(ctx, spec.Image)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", spec.Image, err)
	}
	img.User = cmp.Or(img.User, p.o.User)
	req, err := p.createOptions(ctx, id, spec, img)
	if err != nil {
		return nil, err
	}
	if err := p.checkVolumes(ctx, spec); err != nil {
		return nil, err
	}
	if p.o.Ephemeral {
		p.swept.Do(func() { p.engine.goDo(p.sweepUnstarted) })
	}
	made, err := p.createContainer(ctx, id, req, spec.Resources.Disk != 0)
	if err != nil {
		return nil, err
	}
	if err := p.checkVolumes(ctx, spec); err != nil { // the container keeps volumes from being removed
		return nil, errors.Join(err, p.engine.removeUseless(ctx, made), p.dropMade(ctx, spec))
	}
	b, err := p.sandboxes.ensureSandbox(p, id, made)
	if err != nil {
		return nil, errors.Join(err, p.engine.removeUseless(ctx, made))
	}
	rec := record{ID: id, Container: made, Engine: p.engine.address(), Spec: spec, CreatedAt: time.Now(), Token: rand.Text(), Image: img}
	inst := newInstance(b, rec.Token)
	if err = p.records.writeRecord(rec); err == nil {
		err = p.bootContainer(ctx, b, inst, rec)
	}
	if err != nil {
		clean, free := p.engine.clean.bindContext(context.WithoutCancel(ctx))
		defer free()
		return nil, errors.Join(err, b.removeContainer(clean))
	}
	return inst, nil
}

// bootContainer starts a container for the first time.
func (p *Provider) bootContainer(ctx context.Context, b *sandbox, inst *Instance, rec record) error {
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer b.unlock()
	if err := p.guest.ensureVolume(ctx, b.container, rec.Image.ID); err != nil {
		return err
	}
	return b.startContainer(ctx, inst, rec)
}

// createOptions returns the request for a sandbox's container.
func (p *Provider) createOptions(ctx context.Context, id sandpit.ID, spec sandpit.Spec, img imageInfo) (client.ContainerCreateOptions, error) {
	volume, err := p.guest.volumeName(ctx)
	if err != nil {
		return client.ContainerCreateOptions{}, err
	}
	facts, err := p.engine.readFacts(ctx)
	if err != nil {
		return client.ContainerCreateOptions{}, err
	}
	l, err := p.limitsFor(spec.Resources, facts)
	if err != nil {
		return client.ContainerCreateOptions{}, err
	}
	public := spec.Clone()
	public.Env = nil // it may contain secrets, and all users of the engine can read labels
	text, err := json.Marshal(public)
	if err != nil {
		return client.ContainerCreateOptions{}, err
	}
	config, host := p.containerConfig(spec, img, volume, l)
	config.Labels = map[string]string{
		labelID: string(id), labelManager: p.o.Manager, labelSpec: string(text), labelAttempt: rand.Text(),
	}
	if p.o.Ephemeral {
		config.Labels[labelEphemeral] = "1"
	}
	return client.ContainerCreateOptions{Config: config, HostConfig: host, Name: containerName(id)}, nil
}

func containerName(id sandpit.ID) string { return "sandpit-" + string(id) }

// createContainer creates a container, without the default limit of the disk if the engine cannot
// enforce it.
func (p *Provider) createContainer(ctx context.Context, id sandpit.ID, req client.ContainerCreateOptions, explicitDisk bool) (string, error) {
	made, err := p.makeOnce(ctx, id, req)
	if err == nil || req.HostConfig.StorageOpt == nil || ctx.Err() != nil || !isRefusal(err) {
		return made, err
	}
	if explicitDisk {
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "limit the disk: %w", err),
			"omit the limit, or use a storage driver with quotas (overlay2 on XFS mounted with pquota, btrfs, zfs)")
	}
	host := *req.HostConfig
	host.StorageOpt = nil
	req.HostConfig = &host
	made, again := p.makeOnce(ctx, id, req)
	if again == nil { // the limit was the reason
		p.engine.noDisk.Store(true)
		p.engine.noticeOnce(noticeDisk)
	}
	return made, again
}

// isRefusal reports whether the engine may have rejected the request itself.
func isRefusal(err error) bool {
	switch sandpit.CodeOf(err) {
	case sandpit.Internal, sandpit.Invalid, sandpit.Unsupported:
		return true
	default:
		return false
	}
}

// created is the result of creating a container.
type created struct {
	id  string
	err error
}

// makeOnce creates a container. An engine does not stop when its client disconnects, so makeOnce
// waits for the container of a canceled call and removes it, in the background if necessary.
func (p *Provider) makeOnce(ctx context.Context, id sandpit.ID, req client.ContainerCreateOptions) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	done := make(chan created, 1)
	started := p.engine.goDo(func() {
		limited, cancel := p.engine.cleanupContext(ctx)
		defer cancel()
		res, err := p.engine.api.ContainerCreate(limited, req)
		for _, warning := range res.Warnings {
			p.engine.noticeOnce("docker engine: " + shortenText(warning))
		}
		done <- created{res.ID, err}
	})
	if !started {
		return "", errClosed
	}
	var res created
	select {
	case res = <-done:
	case <-ctx.Done():
		// Creating takes a moment. A canceled call should leave nothing.
		select {
		case res = <-done:
		case <-time.After(givenUp):
			p.engine.goDo(func() {
				if late := <-done; late.err == nil {
					_ = p.engine.removeUseless(ctx, late.id) // List removes it if this fails
				}
			})
			return "", ctx.Err()
		}
	}
	if res.err == nil && ctx.Err() != nil {
		return "", errors.Join(ctx.Err(), p.engine.removeUseless(ctx, res.id))
	}
	if p.nameTaken(ctx, id, res.err) {
		return "", sandpit.Errorf(sandpit.AlreadyExists, "sandbox %s already exists", id)
	}
	return res.id, p.engine.wrapError(ctx, "create the container", res.err)
}

// nameTaken reports whether a container could not be created because its name is in use. Podman
// reports that like any other failure.
func (p *Provider) nameTaken(ctx context.Context, id sandpit.ID, err error) bool {
	if err == nil || cerrdefs.IsConflict(err) || cerrdefs.IsAlreadyExists(err) {
		return err != nil
	}
	if !cerrdefs.IsInternal(err) {
		return false
	}
	_, err = p.engine.inspectContainer(ctx, containerName(id))
	return err == nil
}

// givenUp is how long a canceled call waits for the engine.
const givenUp = 10 * time.Second
