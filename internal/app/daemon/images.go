package daemon

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/build/template"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// OpenImages opens the cache of images that cfg names, for the user of this machine.
func OpenImages(cfg config.Config) (*image.Store, error) { return openImages(cfg, nil) }

// imageSharing is how the owners of a server share its cache of images, whose directory exists.
func (s *service) imageSharing(cfg config.Config) (*image.Sharing, error) {
	disk, err := s.disks.At(cfg.CacheDir)
	own := cfg.Image.OwnerCacheSize
	if own == 0 {
		own = fairshare.Half(cfg.Image.CacheSize)
	}
	return &image.Sharing{Guard: registryGuard(cfg), Pulls: s.pulls, OwnerSize: min(own, cfg.Image.CacheSize), Disk: disk}, err
}

// maxWaitingPulls is how many requests of each owner may wait for a slot.
const maxWaitingPulls = 100

// newPulls returns the slots for fetching images.
func newPulls(cfg config.Config) *fairshare.Pool {
	total := int64(cfg.Image.MaxPulls)
	return fairshare.NewPool(fairshare.Options{
		Name: "slots for fetching images", Total: total, PerOwner: fairshare.Half(total), MaxWaiting: maxWaitingPulls,
		Hint: "wait until the images that you have requested are fetched",
	})
}

func imagesDir(cfg config.Config) string { return filepath.Join(cfg.CacheDir, "images") }

func openImages(cfg config.Config, sharing *image.Sharing) (*image.Store, error) {
	dir := imagesDir(cfg)
	for _, dir := range []string{cfg.CacheDir, dir} {
		if err := config.MakePrivate(dir, os.Geteuid()); err != nil {
			return nil, err
		}
	}
	o := imageOptions(cfg)
	o.Sharing = sharing
	return image.Open(dir, o)
}

// registryGuard keeps users of a server from having it ask registries that they do not reach
// themselves, but for those that the configuration names in any way.
func registryGuard(cfg config.Config) *image.Guard {
	inside := slices.Concat(cfg.Image.Registries, cfg.Image.Insecure, slices.Collect(maps.Keys(cfg.Image.Auth)))
	for _, mirrors := range cfg.Image.Mirrors {
		inside = append(inside, mirrors...)
	}
	for _, ref := range cfg.Images() {
		if registry := image.RegistryOf(ref); registry != "" {
			inside = append(inside, registry)
		}
	}
	return image.NewGuard(inside)
}

func imageOptions(cfg config.Config) image.Options {
	return image.Options{
		Pull:        image.PullPolicy(cfg.Image.Pull),
		Mirrors:     cfg.Image.Mirrors,
		Insecure:    cfg.Image.Insecure,
		Credentials: registryCredentials(cfg.Image),
		CacheSize:   cfg.Image.CacheSize,
		PullTimeout: cfg.Image.PullTimeout,
		Builtins:    template.Builtins(),
	}
}

// registryCredentials takes logins from our own configuration, then from Docker's.
func registryCredentials(cfg config.Image) image.CredentialFunc {
	docker := image.DockerCredentials(cfg.DockerConfig)
	return func(ctx context.Context, registry string) (image.Credential, error) {
		if login, ok := cfg.Auth[registry]; ok {
			return image.Credential{User: login.User, Password: login.Password}, nil
		}
		return docker(ctx, registry)
	}
}

// ProviderImages are the images of a provider that has images of its own. Methods may be called
// concurrently.
type ProviderImages struct {
	provider sandpit.Provider
	keeper   registration.ImageKeeper
}

// OpenProviderImages returns the images of the provider that cfg names if it has images of its
// own, else nil: then they are those of OpenImages. It does not connect yet.
//
// Unsupported: unknown provider.
func OpenProviderImages(ctx context.Context, cfg config.Config) (*ProviderImages, error) {
	p, err := findRegistration(registrations(), cfg.Provider)
	if err != nil || p.UsesImageCache {
		return nil, err
	}
	inner, err := p.Open(ctx, newSurroundings(cfg))
	if err != nil {
		return nil, err
	}
	if keeper, ok := sandpit.As[registration.ImageKeeper](inner); ok {
		return &ProviderImages{inner, keeper}, nil
	}
	return nil, inner.Close()
}

// List returns the images that have a name.
func (i ProviderImages) List(ctx context.Context) ([]wire.Image, error) {
	list, err := i.keeper.Images(ctx, "")
	return toImages(list), err
}

// Pull fetches an image if it is missing; with always, in any case. progress, which may be nil, is
// called with bytes.
func (i ProviderImages) Pull(ctx context.Context, name string, always bool, progress func(done, total int64)) (wire.Image, error) {
	e, err := i.keeper.Pull(ctx, "", name, always, progress)
	return toImage(e), err
}

// Remove removes an image by name or ID.
func (i ProviderImages) Remove(ctx context.Context, name string) error {
	return i.keeper.RemoveImage(ctx, name)
}

// Close closes the provider.
func (i ProviderImages) Close() error { return i.provider.Close() }
