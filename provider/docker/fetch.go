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
	// Name is one of its names, "" if it has none.
	Name string
	// ID is the engine's, which names its content.
	ID string
	// Platform is such as linux/amd64.
	Platform string
	// Size is in bytes on the engine's disk.
	Size    int64
	Created time.Time
}

// ImagesFor lists the images that an ordinary owner of a server may use and that are there,
// by name.
func (p *Provider) ImagesFor(ctx context.Context) ([]Image, error) {
	return p.listImages(ctx, func(named reference.Named, fetched []string) bool {
		return p.isListed(named) || imageInfo{fetched: fetched}.isOf(named)
	})
}

// Images lists the images of the engine that have a name, snapshots left aside.
func (p *Provider) Images(ctx context.Context) ([]Image, error) {
	return p.listImages(ctx, func(reference.Named, []string) bool { return true })
}

func (p *Provider) listImages(ctx context.Context, shows func(named reference.Named, fetched []string) bool) ([]Image, error) {
	limited, cancel := p.callContext(ctx)
	defer cancel()
	res, err := p.api.ImageList(limited, client.ImageListOptions{})
	if err != nil {
		return nil, p.engineError(ctx, "list the images", err)
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

// Pull has the engine fetch an image unless it has it; always asks the registry all the
// same. Whoever else wants it meanwhile waits for the same fetch. progress hears of it,
// not at the same time twice; it may be nil.
//
// PermissionDenied: the pull policy is never. Otherwise the errors are those of Create
// about images.
func (p *Provider) Pull(ctx context.Context, name string, always bool, progress image.Progress) (Image, error) {
	named, err := parseName(name)
	if err != nil {
		return Image{}, err
	}
	if progress != nil {
		defer p.hearers.addListener(named.String(), progress)()
	}
	pull := func(ctx context.Context) error { return p.pullImage(ctx, named) }
	if p.o.Pull == image.PullNever {
		pull = func(context.Context) error { return errPullNever() }
	}
	if _, pinned := named.(reference.Digested); always && !pinned {
		if err := p.images.fetchOnce(ctx, p, named.String(), pull); err != nil {
			return Image{}, err
		}
	}
	if _, err := p.images.ensureImage(ctx, p, named.String(), pull); err != nil {
		return Image{}, err
	}
	return p.describeImage(ctx, name, named.String())
}

// errPullNever says that the configuration lets no registry be asked.
func errPullNever() error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "image.pull is never: pulling is disabled"),
		"set image.pull to missing, or load the image into the engine")
}

// PullFor is Pull for an ordinary owner of a server, with the rights of PrepareImageFor. An
// owner does not renew a name, which would change its meaning for other users.
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
		defer p.hearers.addListener(named.String(), progress)()
	}
	id, err := p.PrepareImageFor(ctx, owner, sandpit.Image(name))
	if err != nil {
		return Image{}, err
	}
	return p.describeImage(ctx, name, string(id))
}

// describeImage returns what the engine says of an image, under a name.
func (p *Provider) describeImage(ctx context.Context, name, id string) (Image, error) {
	limited, cancel := p.callContext(ctx)
	defer cancel()
	res, err := p.api.ImageInspect(limited, id)
	if err != nil {
		return Image{}, p.engineError(ctx, "look for the image", err)
	}
	img := Image{Name: name, ID: res.ID, Size: max(0, res.Size), Platform: res.Os + "/" + res.Architecture}
	if at, err := time.Parse(time.RFC3339Nano, res.Created); err == nil { // it may say nothing
		img.Created = at
	}
	return img, nil
}

// ImageConfig returns what an image says about the programs in it. The engine fetches
// it first, if need be.
//
// The errors are those of Create about images.
func (p *Provider) ImageConfig(ctx context.Context, ref sandpit.Image) (image.Config, error) {
	info, err := p.images.findImage(ctx, p, ref)
	if err != nil {
		return image.Config{}, err
	}
	return image.Config{Env: info.Env, WorkDir: info.WorkDir, User: info.User, Entrypoint: info.Entry, Cmd: info.Cmd}, nil
}

// HasImage reports whether the engine has an image under a name.
func (p *Provider) HasImage(ctx context.Context, name string) (bool, error) {
	named, err := parseName(name)
	if err != nil {
		return false, nil //nolint:nilerr // nothing has such a name
	}
	_, err = p.imageInfo(ctx, named.String())
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return false, nil
	}
	return err == nil, err
}

func parseName(text string) (reference.Named, error) {
	if _, is := sandpit.Image(text).Template(); is { // and not a registry's image of that name
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "%s: a docker engine has no templates", shortenText(text)),
			"templates are of the built-in provider; Docker Hub's image of that name is docker.io/library/template")
	}
	named, err := reference.ParseNormalizedNamed(text)
	if err != nil {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "not the name of an image: %w", err),
			"write for example python:3.12-slim or ghcr.io/owner/name:tag; a file starts with / or ./")
	}
	// Whose those are is not known here; a snapshot is named as one, which its keeper checks.
	if name := reference.FamiliarName(named); name == snapshotName || name == archiveName {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "%s: images of that name are sandpit's own", shortenText(text)),
			"a snapshot is the image snapshot:ID")
	}
	return reference.TagNameOnly(named), nil
}

// progressListeners are who hears how far the fetching of an image is, by its name.
type progressListeners struct {
	mu   sync.Mutex
	list map[string][]*image.Progress
}

// addListener has f hear until the function is called that is returned.
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

// notifyListeners tells all who want to hear of an image. Who is removed hears nothing more.
func (h *progressListeners) notifyListeners(name string, done, total int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, f := range h.list[name] {
		(*f)(done, total)
	}
}
