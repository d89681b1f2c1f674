package daemon

import (
	"context"
	"os"
	"path/filepath"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// Images is the cache of images, and with it what its methods speak of.
type Images = image.Store

// ImageEntry is one image of the cache under one of its names.
type ImageEntry = image.Entry

// ImageUpdate compares an image of the cache with that of its registry.
type ImageUpdate = image.Update

// ImageConfig is what an image says about the programs in it.
type ImageConfig = image.Config

// PruneOptions say what may be removed from the cache.
type PruneOptions = image.PruneOptions

// Pruned is what was removed from the cache.
type Pruned = image.Pruned

// OpenImages opens the cache of images that cfg names.
func OpenImages(cfg config.Config) (*Images, error) {
	dir := filepath.Join(cfg.CacheDir, "images")
	for _, dir := range []string{cfg.CacheDir, dir} {
		if err := config.MakePrivate(dir, os.Geteuid()); err != nil {
			return nil, err
		}
	}
	return image.Open(dir, imageOptions(cfg))
}

func imageOptions(cfg config.Config) image.Options {
	return image.Options{
		Pull:        image.PullPolicy(cfg.Image.Pull),
		Mirrors:     cfg.Image.Mirrors,
		Insecure:    cfg.Image.Insecure,
		Credentials: credentials(cfg.Image),
		CacheSize:   cfg.Image.CacheSize,
		PullTimeout: cfg.Image.PullTimeout,
	}
}

// credentials takes logins from our own configuration, then from Docker's.
func credentials(cfg config.Image) image.CredentialFunc {
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
	root, err := l.images.Resolve(ctx, ref, l.progress)
	if err != nil {
		return ImageConfig{}, err
	}
	return root.Config, root.File.Close()
}

// HasImage reports whether the cache has an image under a name.
func (l *Local) HasImage(name string) (bool, error) { return l.images.Has(name) }
