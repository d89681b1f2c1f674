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
	if err := p.checkReachable(ctx); err != nil {
		return nil, err
	}
	if err := p.followEvents(ctx); err != nil {
		return nil, err
	}
	spec, err := p.specOfSnapshot(ctx, spec)
	if err == nil {
		err = p.validateSpec(spec) // with what the snapshot fixes
	}
	if err != nil {
		return nil, err
	}
	img, err := p.images.findImage(ctx, p, spec.Image)
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
		p.swept.Do(func() { p.goDo(p.sweepUnstarted) })
	}
	made, err := p.createContainer(ctx, id, req, spec.Resources.Disk != 0)
	if err != nil {
		return nil, err
	}
	if err := p.checkVolumes(ctx, spec); err != nil { // from now on they cannot be removed
		return nil, errors.Join(err, p.removeUseless(ctx, made), p.dropMade(ctx, spec))
	}
	b, err := p.sandboxOf(id, made)
	if err != nil {
		return nil, errors.Join(err, p.removeUseless(ctx, made))
	}
	rec := record{ID: id, Container: made, Engine: p.engineHost(), Spec: spec, CreatedAt: time.Now(), Token: rand.Text(), Image: img}
	inst := newInstance(b, rec.Token)
	if err = p.writeRecord(rec); err == nil {
		err = p.bootContainer(ctx, b, inst, rec)
	}
	if err != nil {
		clean, free := p.clean.bindContext(context.WithoutCancel(ctx))
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
	if err := p.guest.ensureVolume(ctx, p, b.container, rec.Image.ID); err != nil {
		return err
	}
	return b.startContainer(ctx, inst, rec)
}

// createOptions returns the container that a sandbox is.
func (p *Provider) createOptions(ctx context.Context, id sandpit.ID, spec sandpit.Spec, img imageInfo) (client.ContainerCreateOptions, error) {
	volume, err := p.guest.volumeName(ctx, p)
	if err != nil {
		return client.ContainerCreateOptions{}, err
	}
	facts, err := p.engineFacts(ctx)
	if err != nil {
		return client.ContainerCreateOptions{}, err
	}
	l, err := p.limitsFor(spec.Resources, facts)
	if err != nil {
		return client.ContainerCreateOptions{}, err
	}
	public := spec.Clone()
	public.Env = nil // may hold secrets, and labels are everybody's
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

// createContainer makes a container, without the default limit of the disk if the engine
// cannot enforce that.
func (p *Provider) createContainer(ctx context.Context, id sandpit.ID, req client.ContainerCreateOptions, explicitDisk bool) (string, error) {
	made, err := p.makeOnce(ctx, id, req)
	if err == nil || req.HostConfig.StorageOpt == nil || ctx.Err() != nil || !isRefusal(err) {
		return made, err
	}
	if explicitDisk {
		return "", sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "limit the disk: %w", err),
			"leave the limit out, or use a storage driver with quotas (overlay2 on XFS mounted with pquota, btrfs, zfs)")
	}
	host := *req.HostConfig
	host.StorageOpt = nil
	req.HostConfig = &host
	made, again := p.makeOnce(ctx, id, req)
	if again == nil { // so it was that
		p.engine.noDisk.Store(true)
		p.noticeOnce(noticeDisk)
	}
	return made, again
}

// isRefusal reports whether an engine's error may be about what was asked for.
func isRefusal(err error) bool {
	switch sandpit.CodeOf(err) {
	case sandpit.Internal, sandpit.Invalid, sandpit.Unsupported:
		return true
	default:
		return false
	}
}

// created is the result of making a container.
type created struct {
	id  string
	err error
}

// makeOnce makes a container. An engine does not stop making one when its client
// goes away, so that is waited for, and the container removed, in the background
// if need be.
func (p *Provider) makeOnce(ctx context.Context, id sandpit.ID, req client.ContainerCreateOptions) (string, error) {
	if err := ctx.Err(); err != nil {
		return "", err
	}
	done := make(chan created, 1)
	started := p.goDo(func() {
		limited, cancel := p.cleanupContext(ctx)
		defer cancel()
		res, err := p.api.ContainerCreate(limited, req)
		for _, warning := range res.Warnings {
			p.noticeOnce("the docker engine says: " + shortenText(warning))
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
		// A container takes a moment. Whoever has given up should find nothing left.
		select {
		case res = <-done:
		case <-time.After(givenUp):
			p.goDo(func() {
				if late := <-done; late.err == nil {
					_ = p.removeUseless(ctx, late.id) // nobody is there to hear; List finds it
				}
			})
			return "", ctx.Err()
		}
	}
	if res.err == nil && ctx.Err() != nil {
		return "", errors.Join(ctx.Err(), p.removeUseless(ctx, res.id))
	}
	if p.nameTaken(ctx, id, res.err) {
		return "", sandpit.Errorf(sandpit.AlreadyExists, "sandbox %s exists already", id)
	}
	return res.id, p.engineError(ctx, "create the container", res.err)
}

// nameTaken reports whether a container could not be made because there is one of its
// name. Podman tells that as any other failure.
func (p *Provider) nameTaken(ctx context.Context, id sandpit.ID, err error) bool {
	if err == nil || cerrdefs.IsConflict(err) || cerrdefs.IsAlreadyExists(err) {
		return err != nil
	}
	if !cerrdefs.IsInternal(err) {
		return false
	}
	_, err = p.inspectContainer(ctx, containerName(id))
	return err == nil
}

// givenUp is how long a call that was given up waits for the engine.
const givenUp = 10 * time.Second

// removeUseless removes a container that is of no use.
func (p *Provider) removeUseless(ctx context.Context, container string) error {
	clean, free := p.clean.bindContext(context.WithoutCancel(ctx))
	defer free()
	return p.removeContainer(clean, container)
}

// removeTries is how often an engine may fail to remove a container.
const removeTries = 10

// removeContainer removes a container and the volumes without a name that its
// image asked for, and returns when it is gone. That works also after Close.
func (p *Provider) removeContainer(ctx context.Context, container string) error {
	limited, cancel := context.WithTimeout(ctx, p.o.CallTimeout)
	defer cancel()
	for tries := 1; ; tries++ {
		_, err := p.api.ContainerRemove(limited, container, client.ContainerRemoveOptions{Force: true, RemoveVolumes: true})
		if err == nil || isNotFound(err) {
			return nil
		}
		// A conflict is somebody else who is about it. Podman fails when the container ends
		// at that moment.
		if !cerrdefs.IsConflict(err) && (!cerrdefs.IsInternal(err) || tries == removeTries) {
			return p.engineError(ctx, "remove the container", err)
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-limited.Done():
			return p.engineError(ctx, "remove the container", err)
		}
	}
}
