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

// Image is an image of the engine.
type Image struct {
	// Name is one of its names, or "" without a name.
	Name string
	// ID is the engine's ID of its content.
	ID string
	// Platform is for example linux/amd64.
	Platform string
	// Size is in bytes on the engine's disk.
	Size    int64
	Created time.Time
}

// ImagesFor lists the images in the engine that an ordinary owner of a server may use, by name.
func (p *Provider) ImagesFor(ctx context.Context) ([]Image, error) {
	return p.listImages(ctx, func(named reference.Named, fetched []string) bool {
		return p.images.isListed(named) || imageInfo{fetched: fetched}.isOf(named)
	})
}

// Images lists the images of the engine that have a name, without snapshots.
func (p *Provider) Images(ctx context.Context) ([]Image, error) {
	return p.listImages(ctx, func(reference.Named, []string) bool { return true })
}

func (p *Provider) listImages(ctx context.Context, shows func(named reference.Named, fetched []string) bool) ([]Image, error) {
	limited, cancel := p.engine.callContext(ctx)
	defer cancel()
	res, err := p.engine.api.ImageList(limited, client.ImageListOptions{})
	if err != nil {
		return nil, p.engine.wrapError(ctx, "list the images", err)
	}
	var list []Image
	for _, one := range res.Items {
		fetched := repositoriesOf(one.RepoDigests)
		for _, name := range one.RepoTags {
			named, err := reference.ParseNormalizedNamed(name)
			if err != nil || reference.FamiliarName(named) == snapshotName || !shows(named, fetched) {
				continue
			}
			list = append(list, Image{Name: name, ID: one.ID, Size: max(0, one.Size), Created: time.Unix(one.Created, 0)})
		}
	}
	return list, nil
}

// Pull has the engine fetch an image if it is missing; with always, in any case. Concurrent calls
// for the same image share one fetch. progress, which may be nil, is called by one goroutine at a
// time.
//
// PermissionDenied: the pull policy is never. Otherwise the errors are those of Create
// about images.
func (p *Provider) Pull(ctx context.Context, name string, always bool, progress image.Progress) (Image, error) {
	named, err := parseName(name)
	if err != nil {
		return Image{}, err
	}
	if progress != nil {
		defer p.images.listeners.addListener(named.String(), progress)()
	}
	pull := func(ctx context.Context) error { return p.images.pullImage(ctx, named) }
	if p.o.Pull == image.PullNever {
		pull = func(context.Context) error { return errPullNever() }
	}
	if _, pinned := named.(reference.Digested); always && !pinned {
		if err := p.images.fetchOnce(ctx, named.String(), pull); err != nil {
			return Image{}, err
		}
	}
	if _, err := p.images.ensureImage(ctx, named.String(), pull); err != nil {
		return Image{}, err
	}
	return p.describeImage(ctx, name, named.String())
}

// errPullNever returns the error for the pull policy never.
func errPullNever() error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "image.pull is never: pulling is disabled"),
		"set image.pull to missing, or load the image into the engine")
}

// PullFor is Pull for an ordinary owner of a server, with the rights of PrepareImageFor. An owner
// cannot refresh a name, because that changes its meaning for other users.
//
// PermissionDenied: always is set. Otherwise as PrepareImageFor.
func (p *Provider) PullFor(ctx context.Context, owner, name string, always bool, progress image.Progress) (Image, error) {
	named, err := parseName(name)
	if err != nil {
		return Image{}, err
	}
	if _, pinned := named.(reference.Digested); always && !pinned {
		return Image{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "image %s: only administrators may refresh image names of a docker engine, because all its users share them", shortenText(name)),
			"omit always, or name a version by its digest: NAME@sha256:...")
	}
	if progress != nil {
		defer p.images.listeners.addListener(named.String(), progress)()
	}
	id, err := p.PrepareImageFor(ctx, owner, sandpit.Image(name))
	if err != nil {
		return Image{}, err
	}
	return p.describeImage(ctx, name, string(id))
}

// describeImage returns the engine's description of an image, under a name.
func (p *Provider) describeImage(ctx context.Context, name, id string) (Image, error) {
	limited, cancel := p.engine.callContext(ctx)
	defer cancel()
	res, err := p.engine.api.ImageInspect(limited, id)
	if err != nil {
		return Image{}, p.engine.wrapError(ctx, "find the image", err)
	}
	img := Image{Name: name, ID: res.ID, Size: max(0, res.Size), Platform: res.Os + "/" + res.Architecture}
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
