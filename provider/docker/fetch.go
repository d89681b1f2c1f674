package docker

import (
	"context"
	"sync"
	"time"

	"github.com/distribution/reference"
	"github.com/moby/moby/client"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// imageKind is the kind of an image of the engine.
const imageKind image.Kind = "docker"

// Images lists the images of the engine that have a name, without snapshots, and that an owner of a
// server may use. The owner "" means an administrator, with the right to every image.
func (p *Provider) Images(ctx context.Context, owner string) ([]image.Entry, error) {
	limited, cancel := p.engine.callContext(ctx)
	defer cancel()
	res, err := p.engine.api.ImageList(limited, client.ImageListOptions{})
	if err != nil {
		return nil, p.engine.wrapError(ctx, "list the images", err)
	}
	var list []image.Entry
	for _, one := range res.Items {
		fetched := repositoriesOf(one.RepoDigests)
		for _, name := range one.RepoTags {
			named, err := reference.ParseNormalizedNamed(name)
			if err != nil || reference.FamiliarName(named) == snapshotName {
				continue
			}
			if owner != "" && !p.images.isListed(named) && !(imageInfo{fetched: fetched}).isOf(named) {
				continue
			}
			list = append(list, image.Entry{Kind: imageKind, Name: name, ID: one.ID, Size: max(0, one.Size), Created: time.Unix(one.Created, 0)})
		}
	}
	return list, nil
}

// Pull has the engine fetch an image if it is missing; with always, in any case. Concurrent calls
// for the same image share one fetch. progress, which may be nil, is called by one goroutine at a
// time. An ordinary owner of a server has the rights of ResolveImage, and cannot refresh a name,
// because that changes its meaning for other users. The owner "" means an administrator.
//
// PermissionDenied: the pull policy is never, or always is set for an ordinary owner. Otherwise the
// errors are those of ResolveImage.
func (p *Provider) Pull(ctx context.Context, owner, name string, always bool, progress image.Progress) (image.Entry, error) {
	named, err := parseName(name)
	if err != nil {
		return image.Entry{}, err
	}
	_, pinned := named.(reference.Digested)
	always = always && !pinned
	if owner != "" && always {
		return image.Entry{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "image %s: only administrators may refresh image names of a docker engine, because all its users share them", shortenText(name)),
			"omit always, or name a version by its digest: NAME@sha256:...")
	}
	if progress != nil {
		defer p.images.listeners.addListener(named.String(), progress)()
	}
	if owner != "" {
		id, err := p.ResolveImage(ctx, owner, sandpit.Image(name))
		if err != nil {
			return image.Entry{}, err
		}
		return p.describeImage(ctx, name, string(id))
	}
	pull := func(ctx context.Context) error { return p.images.pullImage(ctx, named) }
	if p.o.Pull == image.PullNever {
		pull = func(context.Context) error { return errPullNever() }
	}
	if always {
		if err := p.images.fetchOnce(ctx, named.String(), pull); err != nil {
			return image.Entry{}, err
		}
	}
	if _, err := p.images.ensureImage(ctx, named.String(), pull); err != nil {
		return image.Entry{}, err
	}
	return p.describeImage(ctx, name, named.String())
}

// errPullNever returns the error for the pull policy never.
func errPullNever() error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "image.pull is never: pulling is disabled"),
		"set image.pull to missing, or load the image into the engine")
}

// RemoveImage returns Unsupported, because other users of the engine may use its images.
func (*Provider) RemoveImage(context.Context, string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "delete an image: those of a docker engine may be others', too"), "docker image rm")
}

// describeImage returns the engine's description of an image, under a name.
func (p *Provider) describeImage(ctx context.Context, name, id string) (image.Entry, error) {
	limited, cancel := p.engine.callContext(ctx)
	defer cancel()
	res, err := p.engine.api.ImageInspect(limited, id)
	if err != nil {
		return image.Entry{}, p.engine.wrapError(ctx, "find the image", err)
	}
	img := image.Entry{Kind: imageKind, Name: name, ID: res.ID, Size: max(0, res.Size), Platform: res.Os + "/" + res.Architecture}
	if at, err := time.Parse(time.RFC3339Nano, res.Created); err == nil { // it may be missing
		img.Created = at
	}
	return img, nil
}

// ImageConfig returns the configuration of an image. The engine fetches it first if it is missing.
//
// The errors are those of Create about images.
func (p *Provider) ImageConfig(ctx context.Context, ref sandpit.Image) (image.Config, error) {
	info, err := p.images.findImage(ctx, ref)
	if err != nil {
		return image.Config{}, err
	}
	return image.Config{Env: info.Env, WorkDir: info.WorkDir, User: info.User, Entrypoint: info.Entry, Cmd: info.Cmd}, nil
}

// HasImage reports whether the engine has an image under a name.
func (p *Provider) HasImage(ctx context.Context, name string) (bool, error) {
	named, err := parseName(name)
	if err != nil {
		return false, nil //nolint:nilerr // no image has an invalid name
	}
	_, err = p.images.inspectImage(ctx, named.String())
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return false, nil
	}
	return err == nil, err
}

func parseName(text string) (reference.Named, error) {
	if _, is := sandpit.Image(text).Template(); is { // not a registry's image of that name
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "%s: a docker engine has no templates", shortenText(text)),
			"the built-in provider has templates; Docker Hub's image of that name is docker.io/library/template")
	}
	named, err := reference.ParseNormalizedNamed(text)
	if err != nil {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "invalid image name: %w", err),
			"write for example python:3.12-slim or ghcr.io/owner/name:tag; a file starts with / or ./")
	}
	// Their owners are not known here; a snapshot is named snapshot:ID, which SnapshotKeeper checks.
	if name := reference.FamiliarName(named); name == snapshotName || name == archiveName {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "%s: images of that name are reserved for sandpit", shortenText(text)),
			"name a snapshot as snapshot:ID")
	}
	return reference.TagNameOnly(named), nil
}

// progressListeners are the functions that receive the progress of fetches, by the name of the image.
type progressListeners struct {
	mu   sync.Mutex
	list map[string][]*image.Progress
}

// addListener adds f until the returned function is called.
func (h *progressListeners) addListener(name string, f image.Progress) (remove func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.list == nil {
		h.list = make(map[string][]*image.Progress)
	}
	own := &f
	h.list[name] = append(h.list[name], own)
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		var left []*image.Progress
		for _, other := range h.list[name] {
			if other != own {
				left = append(left, other)
			}
		}
		if h.list[name] = left; len(left) == 0 {
			delete(h.list, name)
		}
	}
}

// notifyListeners calls the listeners of an image. A removed listener is not called again.
func (h *progressListeners) notifyListeners(name string, done, total int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.list[name] {
		(*f)(done, total)
	}
}
