package manager

import (
	"context"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Network changes and inspects the networks of sandboxes. All methods may be called concurrently.
type Network struct {
	sandboxes *recordIndex
	core      *core
	instances *instances
	o         *Options
	records   *recordStore
}

// maxRuleArgs bounds each kind of rule in an event, in bytes.
const maxRuleArgs = 2000

// Set replaces the network policy of a running or paused sandbox: connections that are now
// forbidden are closed, all others continue. Secrets are added first; they are passed on and not
// stored here. They take effect even if the policy is then refused.
//
// Conflict: the sandbox does not run, or differs from p in being online. Invalid: a rule or secret.
// PermissionDenied: p asks for more than the ceiling allows. Unsupported: its provider cannot do
// that.
func (nw *Network) Set(ctx context.Context, id sandpit.ID, p sandpit.NetworkPolicy, secrets map[string]string) error {
	p, err := nw.o.BoundNetwork(p.Clone(), isAdministrator(ctx))
	if err != nil {
		return err
	}
	args := policyArgs(p)
	if len(secrets) > 0 {
		args["secrets"] = cutText(strings.Join(slices.Sorted(maps.Keys(secrets)), " "), maxRuleArgs)
	}
	return nw.core.runOperation(ctx, id, "set network", args, func(ctx context.Context, rec *sandboxRecord) error {
		row := rec.currentRow()
		if row.State != sandpit.StateRunning && row.State != sandpit.StatePaused {
			return stateError(row)
		}
		if row.Spec.Network.Online != p.Online {
			return sandpit.Errorf(sandpit.Conflict, "sandbox %s: whether it is online cannot be changed after its creation", id)
		}
		i, err := nw.instances.ensureAttached(ctx, rec)
		if err != nil {
			return err
		}
		policer, ok := as[sandpit.NetworkPolicer](i)
		if !ok {
			return sandpit.Errorf(sandpit.Unsupported, "sandbox %s: its provider %q has no network rules", id, row.Provider)
		}
		if err := nw.setSecrets(ctx, i, secrets); err != nil {
			return err
		}
		set := withoutResult(func(ctx context.Context) error { return policer.SetNetworkPolicy(ctx, p) })
		if _, err := callProvider(ctx, nw.core.loops, nw.core.newCallTo(row.Provider, "set the network of sandbox "+string(id)), set, nil); err != nil {
			return err
		}
		return nw.records.updateRow(ctx, rec, func(r *store.Row) { r.Spec.Network = p })
	})
}

// NetworkSecrets returns a CreateRequest.Setup that gives a new sandbox the secrets that headers of
// its network refer to; nil for none. Unsupported: its provider sets no headers.
func NetworkSecrets(secrets map[string]string) Setup {
	if len(secrets) == 0 {
		return nil
	}
	return func(ctx context.Context, i sandpit.Instance, _ sandpit.Spec) error {
		keeper, ok := as[sandpit.NetworkSecreter](i)
		if !ok {
			return blameProvider(sandpit.Errorf(sandpit.Unsupported, "this provider's sandboxes have no network that sets headers"))
		}
		return keeper.SetNetworkSecrets(ctx, secrets)
	}
}

func (nw *Network) setSecrets(ctx context.Context, i sandpit.Instance, secrets map[string]string) error {
	if len(secrets) == 0 {
		return nil
	}
	keeper, ok := as[sandpit.NetworkSecreter](i)
	if !ok {
		return sandpit.Errorf(sandpit.Unsupported, "sandbox %s: its provider sets no headers", i.ID())
	}
	give := withoutResult(func(ctx context.Context) error { return keeper.SetNetworkSecrets(ctx, secrets) })
	_, err := callProvider(ctx, nw.core.loops, nw.core.newCall("give secrets to the network of sandbox "+string(i.ID())), give, nil)
	return err
}

// policyArgs returns a policy as arguments of an event. A policy contains no secrets.
func policyArgs(p sandpit.NetworkPolicy) map[string]string {
	args := map[string]string{
		"allow": cutText(strings.Join(p.Allow, " "), maxRuleArgs), "deny": cutText(strings.Join(p.Deny, " "), maxRuleArgs),
	}
	var headers []string
	for _, h := range p.Headers {
		headers = append(headers, h.Host+":"+h.Name)
	}
	args["headers"] = cutText(strings.Join(headers, " "), maxRuleArgs)
	for name, n := range map[string]int64{
		"receive": p.Limits.Receive, "send": p.Limits.Send,
		"connections": int64(p.Limits.Connections), "connection_rate": int64(p.Limits.ConnectionRate),
	} {
		if n != 0 {
			args[name] = strconv.FormatInt(n, 10)
		}
	}
	maps.DeleteFunc(args, func(_, value string) bool { return value == "" })
	return args
}

// Stats returns the counters of a sandbox's network. It does not count as activity. Errors as with
// UsageMeter.Measure.
func (nw *Network) Stats(ctx context.Context, id sandpit.ID) (sandpit.NetworkStats, error) {
	return inspectNetwork(ctx, nw, id, sandpit.NetworkInspector.NetworkStats)
}

// Test returns the decisions about a connection to "name:port" or "address:port"; see
// sandpit.NetworkInspector. It does not count as activity.
func (nw *Network) Test(ctx context.Context, id sandpit.ID, target string) ([]sandpit.NetworkDecision, error) {
	return inspectNetwork(ctx, nw, id, func(i sandpit.NetworkInspector, ctx context.Context) ([]sandpit.NetworkDecision, error) {
		return i.TestNetwork(ctx, target)
	})
}

// Log returns the decisions about a sandbox's connections whose Seq is higher than after, oldest
// first. It does not count as activity.
func (nw *Network) Log(ctx context.Context, id sandpit.ID, after int64) ([]sandpit.NetworkDecision, error) {
	return inspectNetwork(ctx, nw, id, func(l sandpit.NetworkLogger, ctx context.Context) ([]sandpit.NetworkDecision, error) {
		return l.NetworkLog(ctx, after)
	})
}

// inspectNetwork calls an ability of a running or paused sandbox.
func inspectNetwork[A, T any](ctx context.Context, nw *Network, id sandpit.ID, ask func(A, context.Context) (T, error)) (T, error) {
	var zero T
	rec, err := nw.sandboxes.find(id)
	if err != nil {
		return zero, err
	}
	row := rec.currentRow()
	if row.State != sandpit.StateRunning && row.State != sandpit.StatePaused {
		return zero, stateError(row)
	}
	i := rec.currentInstance()
	if i == nil {
		return zero, sandpit.Errorf(sandpit.Unavailable, "sandbox %s is not attached yet", id)
	}
	ability, ok := as[A](i)
	if !ok {
		return zero, sandpit.Errorf(sandpit.Unsupported, "network of sandbox %s: its provider %q has no information about it", id, row.Provider)
	}
	asked := func(ctx context.Context) (T, error) { return ask(ability, ctx) }
	return callProvider(ctx, nw.core.loops, nw.core.newCallTo(row.Provider, "inspect the network of sandbox "+string(id)), asked, nil)
}
