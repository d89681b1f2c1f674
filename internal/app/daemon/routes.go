package daemon

import (
	"cmp"
	"context"
	"runtime"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/registration"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona"
	"github.com/sandpit-dev/sandpit/internal/front/api/e2b"
	"github.com/sandpit-dev/sandpit/internal/front/api/native"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// addRoutes adds the API to a mux, and returns the paths that need no key.
func (s *service) addRoutes(mux api.Router) (public []string) {
	document := native.Register(mux, s.nativeOptions())
	s.data.Register(mux)
	data.Describe(document)
	s.e2b.Register(mux)
	s.daytona.Register(mux)
	s.toolbox.Register(mux)
	s.mcp.Register(mux)
	s.aio.Register(mux)
	return slices.Concat(native.Public(), daytona.Public(), []string{e2b.PathUpload})
}

// nativeOptions say what the API is for.
func (s *service) nativeOptions() native.Options {
	v := ReadVersions()
	return native.Options{
		Manager: s.manager, Store: s.store, Keys: s.keys, SSH: native.SSH{Keys: s.sshKeys, Tokens: s.sshTokens, Where: s.whereSSH},
		Images: imageService{s.images, s.providers}, Providers: s.listProviders, PrePulls: s.prePuller.listStatus,
		Checks: []native.Check{
			{Name: "engine", Do: s.checkEngine},
			{Name: "store", Do: s.checkStoreWrites},
			{Name: "queue", Do: s.checkQueue},
			{Name: "disk", Do: s.checkDisks},
		},
		Version: wire.Version{
			Sandpit: v.Sandpit, GVisor: v.GVisor, Guest: v.Guest, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		},
		URL: s.localURL, Previews: s.gateway, Tokens: s.tokens, Contexts: s.contexts,
		HostAccess: s.hostAccess(), MaxBody: s.cfg.Server.MaxBody, Log: s.log,
	}
}

// hostAccess says which parts of this machine sandboxes of clients may use.
func (s *service) hostAccess() api.HostAccess {
	return api.HostAccess{
		MountRoots: s.cfg.Server.MountRoots, OwnPaths: s.cfg.OwnPaths(), Homes: []string{s.cfg.Home}, TemporaryMounts: s.cfg.Server.TemporaryMounts,
	}
}

// listProviders returns the current status of the providers.
func (s *service) listProviders(ctx context.Context) []wire.Provider {
	statuses, known := s.providers.checkStatuses(ctx), make(map[string]manager.ProviderStatus)
	for _, m := range s.manager.ProviderStatuses() {
		known[m.Name] = m
	}
	list := make([]wire.Provider, len(statuses))
	for i, p := range statuses {
		list[i] = p.ToDocument()
		list[i].Order = s.providerOrder(p.Name)
		m := known[p.Name]
		list[i].Circuit, list[i].CircuitReason, list[i].CircuitSeconds = string(m.Circuit), m.Reason, m.OpenFor.Seconds()
		list[i].Sandboxes, list[i].MaxSandboxes, list[i].Undeletable = m.Sandboxes, m.MaxSandboxes, m.Undeletable
		list[i].SandboxHours, list[i].MaxSandboxHours = m.Used.Hours(), m.MaxHours
	}
	return list
}

// providerOrder returns the place of a provider among those of requests that name none, from 1, or 0
// if such requests do not go to it.
func (s *service) providerOrder(name string) int {
	return 1 + slices.Index(append([]string{s.cfg.Provider}, s.cfg.Fallbacks()...), name)
}

// ToDocument returns the status for clients.
func (p ProviderStatus) ToDocument() wire.Provider {
	d := wire.Provider{
		Name: p.Name, Default: p.Default, Available: p.Err == nil, Endpoint: p.Endpoint, Abilities: p.Abilities, Missing: p.Missing,
		Account: p.Account,
	}
	if p.Err != nil {
		d.Reason, d.Hint = p.Err.Error(), sandpit.HintOf(p.Err)
	}
	return d
}

// imageService is what the API does with images: those of the cache, or those of a provider that
// has images of its own.
type imageService struct {
	store     *image.Store
	providers *providers
}

var _ native.Images = imageService{}

// findKeeper returns the images of the provider of that name, or of the default one. Nil: they are
// those of the cache.
func (s imageService) findKeeper(ctx context.Context, name string) (registration.ImageKeeper, error) {
	p, err := findRegistration(s.providers.list, cmp.Or(name, s.providers.cfg.Provider))
	if err != nil || p.UsesImageCache {
		return nil, err
	}
	inner, err := s.providers.byName[p.Name].OpenProvider(ctx)
	if err != nil {
		return nil, err
	}
	keeper, _ := sandpit.As[registration.ImageKeeper](inner)
	return keeper, nil
}

// List implements native.Images.
func (s imageService) List(ctx context.Context, client api.Principal, provider string) ([]wire.Image, error) {
	keeper, err := s.findKeeper(ctx, provider)
	if err != nil {
		return nil, err
	}
	var list []image.Entry
	if keeper != nil {
		list, err = keeper.Images(ctx, imageOwner(client.Owner, client.Admin))
	} else {
		list, err = imagesFor(s.store, client.Owner, client.Admin).List()
	}
	return toImages(list), err
}

// Pull implements native.Images.
func (s imageService) Pull(ctx context.Context, client api.Principal, p wire.Pull, progress func(wire.Progress)) (wire.Image, error) {
	keeper, err := s.findKeeper(ctx, p.Provider)
	if err != nil {
		return wire.Image{}, err
	}
	report := func(done, total int64) { progress(wire.Progress{Done: done, Total: total}) }
	var e image.Entry
	if keeper != nil {
		e, err = keeper.Pull(ctx, imageOwner(client.Owner, client.Admin), p.Name, p.Always, report)
	} else {
		e, err = imagesFor(s.store, client.Owner, client.Admin).Pull(ctx, p.Name, p.Always, report)
	}
	if err != nil {
		return wire.Image{}, err
	}
	return toImage(e), nil
}

// Remove implements native.Images.
func (s imageService) Remove(ctx context.Context, provider, id string) error {
	keeper, err := s.findKeeper(ctx, provider)
	if err != nil {
		return err
	}
	if keeper != nil {
		return keeper.RemoveImage(ctx, id)
	}
	_, err = s.store.Remove(ctx, id)
	return err
}

func toImages(list []image.Entry) []wire.Image {
	images := make([]wire.Image, len(list))
	for i, e := range list {
		images[i] = toImage(e)
	}
	return images
}

// toImage omits the source of an image, because clients must not see paths of the machine.
func toImage(e image.Entry) wire.Image {
	return wire.Image{
		Name: e.Name, Owner: e.Owner, ID: e.ID, Kind: string(e.Kind), Digest: e.Digest, Platform: e.Platform,
		Size: e.Size, Created: e.Created, Used: e.Used,
	}
}
