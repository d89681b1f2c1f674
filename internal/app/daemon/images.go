package daemon

import (
	"context"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// Images is the cache of images, and with it what its methods speak of.
type Images = image.Store

// ImageEntry is one image of the cache under one of its names.
type ImageEntry = image.Entry

// ImageKind is what an image was made from.
type ImageKind = image.Kind

// ImageUpdate compares an image of the cache with that of its registry.
type ImageUpdate = image.Update

// ImageConfig is what an image says about the programs in it.
type ImageConfig = image.Config

// PruneOptions say what may be removed from the cache.
type PruneOptions = image.PruneOptions

// Pruned is what was removed from the cache.
type Pruned = image.Pruned

// OpenImages opens the cache of images that cfg names, for the user of this machine.
func OpenImages(cfg config.Config) (*Images, error) { return openImages(cfg, nil) }

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

func openImages(cfg config.Config, sharing *image.Sharing) (*Images, error) {
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
	for _, ref := range listedImages(cfg) {
		if registry := image.RegistryOf(ref); registry != "" {
			inside = append(inside, registry)
		}
	}
	return image.NewGuard(inside)
}

// listedImages are those that the configuration names.
func listedImages(cfg config.Config) []sandpit.Image {
	refs := []sandpit.Image{cfg.Sandbox.Image, cfg.Docker.Image}
	refs = append(refs, slices.Collect(maps.Values(cfg.E2B.Templates))...)
	for _, name := range cfg.Image.PrePull {
		refs = append(refs, sandpit.Image(name))
	}
	for _, pool := range cfg.Pools {
		refs = append(refs, pool.Image)
	}
	return refs
}

func imageOptions(cfg config.Config) image.Options {
	return image.Options{
		Pull:        image.PullPolicy(cfg.Image.Pull),
		Mirrors:     cfg.Image.Mirrors,
		Insecure:    cfg.Image.Insecure,
		Credentials: registryCredentials(cfg.Image),
		CacheSize:   cfg.Image.CacheSize,
		PullTimeout: cfg.Image.PullTimeout,
		Builtins:    BuiltinTemplates(),
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

// ImageConfig returns what an image says about the programs in it. The image is
// fetched or converted first, if need be.
func (l *Local) ImageConfig(ctx context.Context, ref sandpit.Image) (ImageConfig, error) {
	return l.images.imageConfig(ctx, ref, l.progress)
}

// HasImage reports whether there is an image under a name already.
func (l *Local) HasImage(ctx context.Context, name string) (bool, error) {
	return l.images.hasImage(ctx, name)
}

// ownImages are those of the cache.
type ownImages struct{ store *image.Store }

func (i ownImages) imageConfig(ctx context.Context, ref sandpit.Image, progress image.Progress) (ImageConfig, error) {
	root, err := i.store.Resolve(ctx, ref, progress)
	if err != nil {
		return ImageConfig{}, err
	}
	return root.Config, root.File.Close()
}

func (i ownImages) hasImage(_ context.Context, name string) (bool, error) { return i.store.Has(name) }

// engineImages are those of a docker engine.
type engineImages struct{ p *docker.Provider }

func (i engineImages) imageConfig(ctx context.Context, ref sandpit.Image, _ image.Progress) (ImageConfig, error) {
	return i.p.ImageConfig(ctx, ref)
}

func (i engineImages) hasImage(ctx context.Context, name string) (bool, error) {
	return i.p.HasImage(ctx, name)
}

// EngineImages are the images of a docker engine. Methods may be called concurrently.
type EngineImages struct{ p *docker.Provider }

// OpenEngineImages returns the images of the provider that cfg names if it has some of
// its own, else nil: then they are those of OpenImages. It does not connect yet.
//
// Unsupported: unknown provider.
func OpenEngineImages(cfg config.Config) (*EngineImages, error) {
	if !slices.Contains(ProviderNames(), cfg.Provider) {
		return nil, unknownProvider(cfg.Provider, ProviderNames())
	}
	if cfg.Provider != nameDocker {
		return nil, nil
	}
	o, err := dockerOptions(cfg)
	if err != nil {
		return nil, err
	}
	o.Ephemeral = true // nothing is made
	p, err := docker.New(o)
	if err != nil {
		return nil, err
	}
	return &EngineImages{p}, nil
}

// List returns those with a name.
func (i EngineImages) List(ctx context.Context) ([]wire.Image, error) {
	return listEngine(ctx, i.p, true)
}

// listEngine returns the images of an engine: all, or those that every owner may use.
func listEngine(ctx context.Context, p *docker.Provider, admin bool) ([]wire.Image, error) {
	look := p.ImagesFor
	if admin {
		look = p.Images
	}
	images, err := look(ctx)
	list := make([]wire.Image, len(images))
	for n, one := range images {
		list[n] = imageOfEngine(one)
	}
	return list, err
}

// Pull has the engine fetch an image unless it has it; with always it asks the registry in
// any case. Progress, which may be nil, is called with bytes.
func (i EngineImages) Pull(ctx context.Context, name string, always bool, progress func(done, total int64)) (wire.Image, error) {
	return pullEngine(ctx, i.p, api.Principal{Admin: true}, wire.Pull{Name: name, Always: always}, progress)
}

// pullEngine has an engine fetch an image for a client.
func pullEngine(ctx context.Context, p *docker.Provider, who api.Principal, w wire.Pull, progress image.Progress) (wire.Image, error) {
	var one docker.Image
	var err error
	if who.Admin {
		one, err = p.Pull(ctx, w.Name, w.Always, progress)
	} else {
		one, err = p.PullFor(ctx, who.Owner, w.Name, w.Always, progress)
	}
	if err != nil {
		return wire.Image{}, err
	}
	return imageOfEngine(one), nil
}

// Remove returns Unsupported: they may be others', too.
func (EngineImages) Remove(context.Context, string) error {
	return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "delete an image: those of a docker engine may be others', too"), "docker image rm")
}

// Close lets go of the engine.
func (i EngineImages) Close() error { return i.p.Close() }

func imageOfEngine(i docker.Image) wire.Image {
	return wire.Image{Name: i.Name, ID: i.ID, Kind: nameDocker, Platform: i.Platform, Size: i.Size, Created: i.Created}
}
