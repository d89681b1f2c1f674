package cli

import (
	"cmp"
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/api"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/app/daemon"
)

// shelf is where images are that are not in this machine's cache.
type shelf interface {
	Pull(ctx context.Context, name string, always bool, progress func(done, total int64)) (api.Image, error)
	List(ctx context.Context) ([]api.Image, error)
	Remove(ctx context.Context, name string) error
	Close() error
}

// serverShelf has the images of a server.
type serverShelf struct {
	client   *client.Client
	provider string // whose sandboxes they are for; "": the server's usual one
}

// chosenProvider is the provider that a request to a server names: that of the flag, else the
// one that this machine's configuration or environment names explicitly. "" leaves the choice
// to the server.
func chosenProvider(cfg config.Config, flag string) string {
	if flag == "" && cfg.Explicit(config.KeyProvider) {
		return cfg.Provider
	}
	return flag
}

func (s serverShelf) Pull(ctx context.Context, name string, always bool, progress func(done, total int64)) (api.Image, error) {
	return s.client.Images.Pull(ctx, api.Pull{Name: name, Always: always, Provider: s.provider}, progress)
}

func (s serverShelf) List(ctx context.Context) ([]api.Image, error) {
	return s.client.Images.List(ctx, s.provider)
}

func (s serverShelf) Remove(ctx context.Context, name string) error {
	return s.client.Images.Remove(ctx, s.provider, name)
}

func (s serverShelf) Close() error {
	s.client.Close()
	return nil
}

// openShelf returns where the images are that a command is about: with a server, if uses
// says so, or in the engine of the provider; nil means this machine's cache.
func (a *app) openShelf(provider string, uses func(config.Config) bool) (shelf, error) {
	overrides := a.serverOverride()
	if provider != "" {
		overrides = append(overrides, config.Override{Flag: "--provider", Key: config.KeyProvider, Value: provider})
	}
	cfg, err := a.loadConfig(overrides...)
	if err != nil {
		return nil, err
	}
	if uses(cfg) {
		c, err := dialConfigured(cfg)
		if err != nil {
			return nil, err
		}
		return serverShelf{c, provider}, nil
	}
	own, err := daemon.OpenEngineImages(cfg)
	if own == nil || err != nil {
		return nil, err // and not an interface with nothing in it
	}
	return own, nil
}

// imagesOnServer is usesServer for images: a provider that is named here need not be the
// one of this user's own server.
func imagesOnServer(cfg config.Config) bool {
	return namesServer(cfg) || !cfg.Explicit(config.KeyProvider) && usesServer(cfg)
}

// withShelf runs one of two: remote for images that are elsewhere, local for the cache.
func (a *app) withShelf(cmd *cobra.Command, provider string, remote func(shelf) error, local func(*daemon.Images) error) error {
	return a.withShelfOf(cmd, provider, imagesOnServer, remote, local)
}

func (a *app) withShelfOf(
	cmd *cobra.Command, provider string, uses func(config.Config) bool, remote func(shelf) error, local func(*daemon.Images) error,
) error {
	s, err := a.openShelf(provider, uses)
	if err != nil {
		return err
	}
	if s != nil {
		err := errors.Join(remote(s), s.Close())
		if _, isServer := s.(serverShelf); isServer {
			return a.verbFailed(cmd.Context(), err)
		}
		return a.interrupted(cmd.Context(), err)
	}
	images, err := a.openImages()
	if err != nil {
		return err
	}
	return a.interrupted(cmd.Context(), local(images))
}

// onlyCache is withShelf for what the cache of this machine alone can do, which this user's
// own server uses as well.
func (a *app) onlyCache(cmd *cobra.Command, local func(*daemon.Images) error) error {
	return a.withShelfOf(cmd, "", namesServer, func(s shelf) error {
		hint := "run this on the server's machine, as its user and without --server"
		if _, isServer := s.(serverShelf); !isServer {
			hint = "use docker for images of its engine, or name the other provider: SANDPIT_PROVIDER=gvisor"
		}
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "%s is for the cache of this machine", cmd.CommandPath()), hint)
	}, local)
}

func addImageProvider(cmd *cobra.Command, provider *string) {
	cmd.Flags().StringVar(provider, "provider", "", "`NAME` of whose images: those of docker are its engine's (default: the usual one)")
}

// showShelf lists images that are elsewhere.
func (a *app) showShelf(list []api.Image, asJSON bool) error {
	if asJSON {
		if list == nil {
			list = []api.Image{}
		}
		return printJSON(a.Out, list)
	}
	rows := [][]string{{"NAME", "DIGEST", "SIZE", "CREATED", "USED"}}
	for _, i := range list {
		rows = append(rows, []string{
			cmp.Or(ownedName(i.Name, i.Owner), "("+i.Kind+")"), shortDigest(cmp.Or(i.Digest, i.ID)), showSize(i.Size), showAge(i.Created), showAge(i.Used),
		})
	}
	return printTable(a.Out, rows)
}
