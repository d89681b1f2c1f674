package native

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
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

// serverHandlers serve what the server reports about itself: use, pools, providers, health
// and version.
type serverHandlers struct {
	manager   *manager.Manager
	providers func(context.Context) []wire.Provider // nil: none
	checks    *checker
	version   wire.Version
	url       func() string // nil: unknown
}

// addOperations adds the operations that report about the server.
func (h *serverHandlers) addOperations(r *registrar) {
	op := newOperation(http.MethodGet, wire.Prefix+"/stats", "getStats", "Get the counters of the server")
	op.Description = "Counts the sandboxes of the client's owner; for administrators, those of all owners."
	addOperation(r, op,
		func(ctx context.Context, _ *struct{}) (*serverStatsOut, error) {
			p, err := api.PrincipalOf(ctx)
			if err != nil {
				return nil, err
			}
			m := h.manager.StatsOf(p.Owner)
			if p.Admin {
				m = h.manager.Stats()
			}
			return &serverStatsOut{wire.Stats{
				TotalSandboxes: m.TotalSandboxes, ActiveOperations: m.ActiveOperations, MaxSandboxes: m.MaxSandboxes,
				IdleTimeout: m.IdleTimeout.Seconds(), CleanupInterval: m.CleanupInterval.Seconds(), IsShuttingDown: m.IsShuttingDown,
			}}, nil
		})
	addOperation(r, newOperation(http.MethodGet, wire.Prefix+"/pools", "listPools", "List the pools of sandboxes that are created in advance"), h.listPools)
	op = newOperation(http.MethodGet, wire.Prefix+"/providers", "listProviders", "List the providers of sandboxes")
	op.Description = "Only administrators see endpoints, accounts, use, and the reasons why providers are not available."
	addOperation(r, op,
		func(ctx context.Context, _ *struct{}) (*providersOut, error) {
			p, err := api.PrincipalOf(ctx)
			if err != nil {
				return nil, err
			}
			list := []wire.Provider{}
			if h.providers != nil {
				list = append(list, h.providers(ctx)...)
			}
			if !p.Admin {
				hideEndpoints(list)
			}
			return &providersOut{wire.Page[wire.Provider]{Items: list}}, nil
		})
}

// hideEndpoints removes details of the server's machine.
func hideEndpoints(list []wire.Provider) {
	for i, p := range list {
		list[i].Endpoint, list[i].Hint, list[i].Account, list[i].CircuitReason = "", "", nil, ""
		list[i].Sandboxes, list[i].SandboxHours, list[i].Undeletable = 0, 0, 0
		if p.Reason != "" {
			list[i].Reason = "not available; ask an administrator for the reason"
		}
	}
}

// listPools returns the state of the pools. Their specs have no secrets: the manager keeps
// only what a pool needs.
func (h *serverHandlers) listPools(context.Context, *struct{}) (*poolsOut, error) {
	list := []wire.Pool{}
	for _, pool := range h.manager.Pools().List() {
		list = append(list, wire.Pool{
			Provider: pool.Provider, Spec: pool.Spec, Size: pool.Size, Max: pool.Max, Ready: pool.Ready, Making: pool.Making,
		})
	}
	return &poolsOut{wire.Page[wire.Pool]{Items: list}}, nil
}
