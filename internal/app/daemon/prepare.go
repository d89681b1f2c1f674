package daemon

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// preparer decides which images owners may use, for every way in which sandboxes are
// created, and makes these images ready. Providers are given references that mean one
// content only, and check no rights themselves.
type preparer struct {
	images    *image.Store
	providers *providers
}

var _ manager.Images = preparer{}

// PrepareImage implements manager.Images.
func (p preparer) PrepareImage(ctx context.Context, r manager.ImageRequest) (manager.PreparedImage, error) {
	for _, k := range p.providers.kinds {
		if k.name == r.Provider && k.prepare != nil {
			return k.prepare(ctx, p, r)
		}
	}
	return manager.PreparedImage{Image: r.Image, Release: func() {}}, nil
}

// prepareCached is PrepareImage for a provider whose images are those of the cache.
func prepareCached(ctx context.Context, p preparer, r manager.ImageRequest) (manager.PreparedImage, error) {
	ref := r.Image
	if ref == "" || ref == sandpit.HostImage { // there is nothing to be fetched
		return manager.PreparedImage{Image: sandpit.HostImage, Release: func() {}}, nil
	}
	if r.Again {
		return p.prepareAgain(ctx, r)
	}
	root, err := imagesFor(p.images, r.Owner, r.Admin).Resolve(ctx, ref, nil)
	if err != nil {
		return manager.PreparedImage{}, err
	}
	return holdRoot(root), nil
}

// holdRoot keeps an image from being removed until it is released.
func holdRoot(root image.Root) manager.PreparedImage {
	return manager.PreparedImage{
		Image:   sandpit.Image(root.ID),
		Release: func() { _ = root.File.Close() }, // only read
	}
}

// prepareAgain returns the image that a sandbox had before. One that was made by an earlier
// version knows its name only.
func (p preparer) prepareAgain(ctx context.Context, r manager.ImageRequest) (manager.PreparedImage, error) {
	cached := p.images.Offline()
	var root image.Root
	var err error
	if r.Prepared != "" {
		root, err = cached.Resolve(ctx, r.Prepared, nil)
	} else {
		root, err = imagesFor(cached, r.Owner, r.Admin).Resolve(ctx, r.Image, nil)
	}
	if err != nil {
		return manager.PreparedImage{}, err
	}
	return holdRoot(root), nil
}

// resolver finds images.
type resolver interface {
	Resolve(ctx context.Context, ref sandpit.Image, p image.Progress) (image.Root, error)
}

// imagesFor returns what an owner finds; every image if admin is set, or for the server
// itself, which has no owner.
func imagesFor(store *image.Store, owner string, admin bool) resolver {
	if admin || owner == "" {
		return store
	}
	return store.For(owner)
}

// prepareEngine is PrepareImage for a docker engine.
func prepareEngine(ctx context.Context, p preparer, r manager.ImageRequest) (manager.PreparedImage, error) {
	inner, err := p.providers.byName[r.Provider].ensureProvider(ctx)
	if err != nil {
		return manager.PreparedImage{}, err
	}
	engine, ok := sandpit.As[*docker.Provider](inner)
	if !ok {
		return manager.PreparedImage{}, sandpit.Errorf(sandpit.Internal, "provider %s is of another kind", r.Provider)
	}
	id := r.Prepared
	switch {
	case r.Again && id != "": // the engine reports it if the image is gone
	case r.Admin || r.Owner == "":
		id, err = engine.EngineImage(ctx, r.Image)
	default:
		id, err = engine.PrepareImageFor(ctx, r.Owner, r.Image)
	}
	return manager.PreparedImage{Image: id, Release: func() {}}, err
}
