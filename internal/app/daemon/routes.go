package daemon

import (
	"cmp"
	"context"
	"runtime"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/api/data"
	"github.com/sandpit-dev/sandpit/internal/front/api/e2b"
	"github.com/sandpit-dev/sandpit/internal/front/api/native"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// addRoutes adds the API to a mux, and returns the paths that need no key.
func (s *service) addRoutes(mux api.Router) (public []string) {
	document := native.Register(mux, s.nativeOptions())
	s.data.Register(mux)
	data.Describe(document)
	s.e2b.Register(mux)
	s.mcp.Register(mux)
	s.aio.Register(mux)
	return append(native.Public(), e2b.PathUpload)
}

// nativeOptions say what the API is for.
func (s *service) nativeOptions() native.Options {
	v := ReadVersions()
	return native.Options{
		Manager: s.manager, Store: s.store, Keys: s.keys, SSH: native.SSH{Keys: s.sshKeys, Tokens: s.sshTokens, Where: s.whereSSH},
		Images: cache{s.images, s.providers}, Providers: s.listProviders, PrePulls: s.prePuller.listStatus,
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
	statuses := s.providers.checkStatuses(ctx)
	list := make([]wire.Provider, len(statuses))
	for i, p := range statuses {
		list[i] = wire.Provider{Name: p.Name, Default: p.Default, Available: p.Err == nil, Endpoint: p.Endpoint, Abilities: p.Abilities}
		if p.Err != nil {
			list[i].Reason, list[i].Hint = p.Err.Error(), sandpit.HintOf(p.Err)
		}
	}
	return list
}

// cache is the server's cache of images as the API speaks of it. Images of provider
// docker are its engine's.
type cache struct {
	store     *image.Store
	providers *providers
}

var _ native.Images = cache{}

// dockerProvider returns the provider of that name, or the default one, if it is docker, which
// has images of its own; else nil.
func (c cache) dockerProvider(ctx context.Context, name string) (*docker.Provider, error) {
	name = cmp.Or(name, c.providers.cfg.Provider)
	l := c.providers.byName[name]
	if l == nil {
		return nil, unknownProvider(name, namesOf(c.providers.kinds))
	}
	if name != nameDocker {
		return nil, nil
	}
	p, err := l.ensureProvider(ctx)
	if err != nil {
		return nil, err
	}
	engine, _ := p.(*docker.Provider)
	return engine, nil
}

func (c cache) List(ctx context.Context, who api.Principal, provider string) ([]wire.Image, error) {
	engine, err := c.dockerProvider(ctx, provider)
	if err != nil {
		return nil, err
	}
	if engine != nil {
		return listEngine(ctx, engine, who.Admin)
	}
	list := c.store.List
	if !who.Admin {
		list = c.store.For(who.Owner).List
	}
	entries, err := list()
	images := make([]wire.Image, 0, len(entries))
	for _, e := range entries {
		images = append(images, imageOf(e))
	}
	return images, err
}

func (c cache) Pull(ctx context.Context, who api.Principal, p wire.Pull, progress func(wire.Progress)) (wire.Image, error) {
	engine, err := c.dockerProvider(ctx, p.Provider)
	if err != nil {
		return wire.Image{}, err
	}
	hear := func(done, total int64) { progress(wire.Progress{Done: done, Total: total}) }
	if engine != nil {
		return pullEngine(ctx, engine, who, p, hear)
	}
	pull := c.store.Pull
	if !who.Admin {
		pull = c.store.For(who.Owner).Pull
	}
	e, err := pull(ctx, p.Name, p.Always, hear)
	if err != nil {
		return wire.Image{}, err
	}
	return imageOf(e), nil
}

func (c cache) Remove(ctx context.Context, provider, id string) error {
	engine, err := c.dockerProvider(ctx, provider)
	if err != nil {
		return err
	}
	if engine != nil {
		return EngineImages{engine}.Remove(ctx, id)
	}
	_, err = c.store.Remove(ctx, id)
	return err
}

// imageOf omits the source of an image, because clients must not see paths of the machine.
func imageOf(e image.Entry) wire.Image {
	return wire.Image{
		Name: e.Name, Owner: e.Owner, ID: e.ID, Kind: string(e.Kind), Digest: e.Digest, Platform: e.Platform,
		Size: e.Size, Created: e.Created, Used: e.Used,
	}
}
