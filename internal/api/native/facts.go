package native

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit/internal/wire"
)

type serverStatsOut struct {
	Body wire.Stats
}

type poolsOut struct {
	Body wire.Page[wire.Pool]
}

type providersOut struct {
	Body wire.Page[wire.Provider]
}

// facts registers what the server says of itself.
func (s *server) facts() {
	add(s, operation(http.MethodGet, wire.Prefix+"/stats", "getStats", "See what the server is busy with"),
		func(context.Context, *struct{}) (*serverStatsOut, error) {
			m := s.Manager.Stats()
			return &serverStatsOut{wire.Stats{
				TotalSandboxes: m.TotalSandboxes, ActiveOperations: m.ActiveOperations, MaxSandboxes: m.MaxSandboxes,
				IdleTimeout: m.IdleTimeout.Seconds(), CleanupInterval: m.CleanupInterval.Seconds(), IsShuttingDown: m.IsShuttingDown,
			}}, nil
		})
	add(s, operation(http.MethodGet, wire.Prefix+"/pools", "listPools", "List the pools of sandboxes that are made ahead"), s.pools)
	add(s, operation(http.MethodGet, wire.Prefix+"/providers", "listProviders", "List the places that make sandboxes"),
		func(ctx context.Context, _ *struct{}) (*providersOut, error) {
			list := []wire.Provider{}
			if s.Providers != nil {
				list = append(list, s.Providers(ctx)...)
			}
			return &providersOut{wire.Page[wire.Provider]{Items: list}}, nil
		})
}

// pools tells how pools are doing. What is in their specs is no secret: the manager
// keeps no more of it than a pool needs.
func (s *server) pools(context.Context, *struct{}) (*poolsOut, error) {
	list := []wire.Pool{}
	for _, pool := range s.Manager.Pools() {
		list = append(list, wire.Pool{
			Provider: pool.Provider, Spec: pool.Spec, Size: pool.Size, Max: pool.Max, Ready: pool.Ready, Making: pool.Making,
		})
	}
	return &poolsOut{wire.Page[wire.Pool]{Items: list}}, nil
}
