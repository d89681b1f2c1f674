package daemon

import (
	"context"
	"net/http"
	"runtime"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/api/data"
	"github.com/sandpit-dev/sandpit/internal/api/native"
	"github.com/sandpit-dev/sandpit/internal/image"
	"github.com/sandpit-dev/sandpit/internal/wire"
)

// routes adds the API to a mux, and returns the paths that nobody needs a key for.
func (s *service) routes(mux *http.ServeMux) (public []string) {
	v := ReadVersions()
	document := native.Register(mux, native.Options{
		Manager: s.manager, Store: s.store, Keys: s.keys, Images: cache{s.images}, Providers: s.listProviders,
		Checks: []native.Check{
			{Name: "engine", Do: s.checkEngine}, {Name: "store", Do: s.checkStore}, {Name: "queue", Do: s.checkQueue},
		},
		Version: wire.Version{
			Sandpit: v.Sandpit, GVisor: v.GVisor, Guest: v.Guest, Go: runtime.Version(), OS: runtime.GOOS, Arch: runtime.GOARCH,
		},
		Previews:   s.gateway,
		MountRoots: s.cfg.Server.MountRoots, Lifetime: s.cfg.Manager.Lifetime, MaxBody: s.cfg.Server.MaxBody, Log: s.log,
	})
	s.data.Register(mux)
	data.Describe(document)
	return native.Public()
}

// listProviders tells of the providers as they were when the server started.
func (s *service) listProviders(context.Context) []wire.Provider {
	list := make([]wire.Provider, len(s.statuses))
	for i, p := range s.statuses {
		list[i] = wire.Provider{Name: p.Name, Default: p.Default, Available: p.Err == nil, Endpoint: p.Endpoint, Abilities: p.Abilities}
		if p.Err != nil {
			list[i].Reason, list[i].Hint = p.Err.Error(), sandpit.HintOf(p.Err)
		}
	}
	return list
}

// cache is the server's cache of images as the API speaks of it.
type cache struct{ store *image.Store }

var _ native.Images = cache{}

func (c cache) List(context.Context) ([]wire.Image, error) {
	entries, err := c.store.List()
	list := make([]wire.Image, 0, len(entries))
	for _, e := range entries {
		list = append(list, imageOf(e))
	}
	return list, err
}

func (c cache) Pull(ctx context.Context, p wire.Pull, progress func(wire.Progress)) (wire.Image, error) {
	e, err := c.store.Pull(ctx, p.Name, p.Always, func(done, total int64) { progress(wire.Progress{Done: done, Total: total}) })
	if err != nil {
		return wire.Image{}, err
	}
	return imageOf(e), nil
}

func (c cache) Remove(ctx context.Context, id string) error {
	_, err := c.store.Remove(ctx, id)
	return err
}

// imageOf leaves out what an image was made from: paths of the machine are nobody's
// business.
func imageOf(e image.Entry) wire.Image {
	return wire.Image{
		Name: e.Name, ID: e.ID, Kind: string(e.Kind), Digest: e.Digest, Platform: e.Platform,
		Size: e.Size, Created: e.Created, Used: e.Used,
	}
}
