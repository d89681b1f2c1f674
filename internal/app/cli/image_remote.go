package cli

import (
	"cmp"
	"context"
	"errors"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// remoteImages are images that are not in this machine's image cache.
type remoteImages interface {
	Pull(ctx context.Context, name string, always bool, progress func(done, total int64)) (api.Image, error)
	List(ctx context.Context) ([]api.Image, error)
	Remove(ctx context.Context, name string) error
	Close() error
}

// serverImages are the images of a server.
type serverImages struct {
	client *client.Client
	// provider is the provider whose sandboxes they are for; "" is the server's default.
	provider string
}

// chosenProvider returns the provider to request from a server, or several with commas between them:
// those of the flag, else those that this machine's configuration or environment sets explicitly. ""
// leaves the choice to the server.
func chosenProvider(cfg config.Config, flag string) string {
	if flag == "" && cfg.Explicit(config.KeyProvider) {
		return strings.Join(append([]string{cfg.Provider}, cfg.Fallbacks()...), ",")
	}
	return flag
}

func (s serverImages) Pull(ctx context.Context, name string, always bool, progress func(done, total int64)) (api.Image, error) {
	return s.client.Images.Pull(ctx, api.Pull{Name: name, Always: always, Provider: s.provider}, progress)
}

func (s serverImages) List(ctx context.Context) ([]api.Image, error) {
	return s.client.Images.List(ctx, s.provider)
}

func (s serverImages) Remove(ctx context.Context, name string) error {
	return s.client.Images.Remove(ctx, s.provider, name)
}

func (s serverImages) Close() error {
	s.client.Close()
	return nil
}

// openRemoteImages returns the images of a server, if uses reports so, or of the provider's
// engine; nil means this machine's image cache.
func (a *app) openRemoteImages(ctx context.Context, provider string, uses func(config.Config) bool) (remoteImages, error) {
	overrides := a.serverOverride()
	if provider != "" {
		overrides = append(overrides, config.Override{Flag: "--provider", Key: config.KeyProvider, Value: provider})
	}
	cfg, err := a.loadConfig(overrides...)
	if err != nil {
		return nil, err
	}
	if uses(cfg) {
		c, err := newConfiguredClient(cfg)
		if err != nil {
			return nil, err
		}
		return serverImages{c, provider}, nil
	}
	own, err := daemon.OpenProviderImages(ctx, cfg)
	if own == nil || err != nil {
		return nil, err // not an interface with a nil pointer
	}
	return own, nil
}

// areImagesOnServer is canUseServer for images: an explicitly configured provider need not be
// that of this user's own server.
func areImagesOnServer(cfg config.Config) bool {
	return isServerNamed(cfg) || !cfg.Explicit(config.KeyProvider) && canUseServer(cfg)
}

// withImages calls remote for images elsewhere, or local for the image cache.
func (a *app) withImages(cmd *cobra.Command, provider string, remote func(remoteImages) error, local func(*image.Store) error) error {
	return a.withImagesOf(cmd, provider, areImagesOnServer, remote, local)
}

// withImagesOf is withImages with another rule for the use of a server.
func (a *app) withImagesOf(
	cmd *cobra.Command, provider string, uses func(config.Config) bool, remote func(remoteImages) error, local func(*image.Store) error,
) error {
	s, err := a.openRemoteImages(cmd.Context(), provider, uses)
	if err != nil {
		return err
	}
	if s != nil {
		err := errors.Join(remote(s), s.Close())
		if _, isServer := s.(serverImages); isServer {
			return a.toVerbError(cmd.Context(), err)
		}
		return a.signalOr(cmd.Context(), err)
	}
	images, err := a.openImages()
	if err != nil {
		return err
	}
	return a.signalOr(cmd.Context(), local(images))
}

// withLocalImages is withImages for operations on this machine's image cache only, which this
// user's own server uses as well.
func (a *app) withLocalImages(cmd *cobra.Command, local func(*image.Store) error) error {
	return a.withImagesOf(cmd, "", isServerNamed, func(s remoteImages) error {
		hint := "run this on the server's machine, as its user and without --server"
		if _, isServer := s.(serverImages); !isServer {
			hint = "use docker for images of its engine, or set the other provider: SANDPIT_PROVIDER=gvisor"
		}
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "%s works on the image cache of this machine only", cmd.CommandPath()), hint)
	}, local)
}

func addImageProvider(cmd *cobra.Command, provider *string) {
	cmd.Flags().StringVar(provider, "provider", "", "`NAME` of the provider: the images of docker are those of its engine (default: the configured one)")
}

// showRemoteImages prints images that are not in this machine's image cache.
func showRemoteImages(a *app, list []api.Image, asJSON bool) error {
	if asJSON {
		if list == nil {
			list = []api.Image{}
		}
		return printJSON(a.Out, list)
	}
	rows := [][]string{{"NAME", "DIGEST", "SIZE", "CREATED", "USED"}}
	for _, i := range list {
		rows = append(rows, []string{
			cmp.Or(ownedName(i.Name, i.Owner), "("+i.Kind+")"), shortDigest(cmp.Or(i.Digest, i.ID)), formatDecimalBytes(i.Size), formatAge(i.Created), formatAge(i.Used),
		})
	}
	return printTable(a.Out, rows)
}
