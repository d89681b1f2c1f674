package native

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/front/api"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

const pathNetwork = pathSandbox + "/network"

type networkOut struct {
	Body wire.Network
}

type setNetworkIn struct {
	One

	Body wire.SetNetwork
}

type networkLogIn struct {
	One

	After int64 `query:"after" minimum:"0" doc:"The seq of a decision: only what was decided, or decided again, later."`
	Limit int   `query:"limit" minimum:"1" maximum:"2000" default:"100" doc:"At most so many, the latest."`
}

type networkTestIn struct {
	One

	Target string `query:"target" required:"true" maxLength:"300" doc:"name:port or address:port."`
}

type decisionsOut struct {
	Body wire.NetworkDecisions
}

// networkHandlers serve the network of sandboxes.
type networkHandlers struct{ manager *manager.Manager }

// register adds the operations on the network of a sandbox.
func (h *networkHandlers) register(r *registrar) {
	addOperation(r, newOperation(http.MethodGet, pathNetwork, "getNetwork", "See what a sandbox may reach"), func(ctx context.Context, in *One) (*networkOut, error) {
		return h.getNetwork(ctx, in.ID)
	})
	op := newOperation(http.MethodPut, pathNetwork, "setNetwork", "Replace what a sandbox may reach")
	op.Description = "Connections that are forbidden now are closed, all others go on. Whether it is online is fixed when it is made."
	addOperation(r, op, h.setNetwork)
	op = newOperation(http.MethodGet, pathNetwork+"/log", "listNetworkDecisions", "See what was decided about connections of a sandbox")
	op.Description = "The last thousand different decisions are remembered."
	addOperation(r, op, h.listDecisions)
	op = newOperation(http.MethodGet, pathNetwork+"/test", "testNetwork", "See what would become of a connection of a sandbox")
	op.Description = "Nothing is connected. For a name, the server's resolvers are asked, and each of its addresses is one answer."
	addOperation(r, op, func(ctx context.Context, in *networkTestIn) (*decisionsOut, error) {
		if _, err := api.Find(ctx, h.manager, in.ID); err != nil {
			return nil, err
		}
		list, err := h.manager.Network().Test(ctx, in.ID, in.Target)
		return toDecisions(list), err
	})
}

func toDecisions(list []sandpit.NetworkDecision) *decisionsOut {
	if list == nil {
		list = []sandpit.NetworkDecision{}
	}
	return &decisionsOut{wire.NetworkDecisions{Items: list}}
}

func (h *networkHandlers) getNetwork(ctx context.Context, id sandpit.ID) (*networkOut, error) {
	found, err := api.Find(ctx, h.manager, id)
	if err != nil {
		return nil, err
	}
	out := &networkOut{wire.Network{Policy: found.Spec.Network}}
	if found.Spec.Network.Online {
		out.Body.Stats, err = h.manager.Network().Stats(ctx, id)
	}
	return out, err
}

func (h *networkHandlers) setNetwork(ctx context.Context, in *setNetworkIn) (*networkOut, error) {
	found, err := api.Find(ctx, h.manager, in.ID)
	if err != nil {
		return nil, err
	}
	if !found.Spec.Network.Online {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "sandbox %s is offline", in.ID),
			"whether a sandbox is online is fixed when it is made")
	}
	p := sandpit.NetworkPolicy{Online: true, Allow: in.Body.Allow, Deny: in.Body.Deny, Headers: in.Body.Headers, Limits: in.Body.Limits}
	if err := h.manager.Network().Set(ctx, in.ID, p, in.Body.Secrets); err != nil {
		return nil, err
	}
	return h.getNetwork(ctx, in.ID)
}

func (h *networkHandlers) listDecisions(ctx context.Context, in *networkLogIn) (*decisionsOut, error) {
	if _, err := api.Find(ctx, h.manager, in.ID); err != nil {
		return nil, err
	}
	list, err := h.manager.Network().Log(ctx, in.ID, in.After)
	if err != nil {
		return nil, err
	}
	return toDecisions(list[max(0, len(list)-in.Limit):]), nil
}
