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
	SandboxPath

	Body wire.SetNetwork
}

type networkLogIn struct {
	SandboxPath

	After int64 `query:"after" minimum:"0" doc:"The seq of a decision; only later decisions are returned."`
	Limit int   `query:"limit" minimum:"1" maximum:"2000" default:"100" doc:"The maximum number of decisions; the latest are returned."`
}

type networkTestIn struct {
	SandboxPath

	Target string `query:"target" required:"true" maxLength:"300" doc:"The destination, as name:port or address:port."`
}

type decisionsOut struct {
	Body wire.NetworkDecisions
}

// networkHandlers serve the network of sandboxes.
type networkHandlers struct{ manager *manager.Manager }

// addOperations adds the operations on the network of a sandbox.
func (h *networkHandlers) addOperations(r *registrar) {
	addOperation(r, newOperation(http.MethodGet, pathNetwork, "getNetwork", "Get the network policy of a sandbox"), func(ctx context.Context, in *SandboxPath) (*networkOut, error) {
		return h.getNetwork(ctx, in.ID)
	})
	op := newOperation(http.MethodPut, pathNetwork, "setNetwork", "Replace the network policy of a sandbox")
	op.Description = "Connections that the new policy denies are closed; all others continue. Whether a sandbox is online is fixed at its creation."
	addOperation(r, op, h.setNetwork)
	op = newOperation(http.MethodGet, pathNetwork+"/log", "listNetworkDecisions", "List the network decisions about a sandbox")
	op.Description = "The server keeps the last thousand different decisions."
	addOperation(r, op, h.listDecisions)
	op = newOperation(http.MethodGet, pathNetwork+"/test", "testNetwork", "Test what the network policy decides about a connection")
	op.Description = "No connection is made. A name is resolved by the server's resolvers; there is one decision for each of its addresses."
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
			"whether a sandbox is online is fixed at its creation")
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
