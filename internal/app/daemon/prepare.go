package daemon

import (
	"context"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
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
	k, err := findRegistration(p.providers.list, r.Provider)
	if err != nil {
		return manager.PreparedImage{}, err
	}
	if k.UsesImageCache {
		return p.prepareCached(ctx, r)
	}
	inner, err := p.providers.byName[r.Provider].OpenProvider(ctx)
	if err != nil {
		return manager.PreparedImage{}, err
	}
	prepared := manager.PreparedImage{Image: r.Image, Release: func() {}}
	if keeper, ok := sandpit.As[registration.ImageKeeper](inner); ok {
		if prepared.Image = r.Prepared; r.Again && r.Prepared != "" {
			return prepared, nil // the provider reports it if the image is gone
		}
		prepared.Image, err = keeper.ResolveImage(ctx, imageOwner(r.Owner, r.Admin), r.Image)
	}
	return prepared, err
}

// prepareCached is PrepareImage for a provider that uses the image cache.
func (p preparer) prepareCached(ctx context.Context, r manager.ImageRequest) (manager.PreparedImage, error) {
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

// cachedImages are the images of the cache that an owner may use.
type cachedImages interface {
	Resolve(ctx context.Context, ref sandpit.Image, p image.Progress) (image.Root, error)
	List() ([]image.Entry, error)
	Pull(ctx context.Context, name string, always bool, p image.Progress) (image.Entry, error)
}

// imagesFor returns the images for an owner; every image if admin is set, or for the server
// itself, which has no owner.
func imagesFor(store *image.Store, owner string, admin bool) cachedImages {
	if owner = imageOwner(owner, admin); owner != "" {
		return store.For(owner)
	}
	return store
}

// imageOwner returns the owner whose rights decide about images, or "" if every image is permitted.
func imageOwner(owner string, admin bool) string {
	if admin {
		return ""
	}
	return owner
}
