package e2b

import (
	"context"
	"fmt"

	"github.com/sandpit-dev/sandpit"
)

// SetNetworkPolicy implements sandpit.NetworkPolicer.
func (i *Instance) SetNetworkPolicy(ctx context.Context, n sandpit.NetworkPolicy) error {
	if err := i.b.setNetwork(ctx, n.Clone()); err != nil {
		return fmt.Errorf("set the network policy of sandbox %s: %w", i.b.h.ID, err)
	}
	return nil
}

func (b *sandbox) setNetwork(ctx context.Context, n sandpit.NetworkPolicy) error {
	if b.isEnded() {
		return b.goneError()
	}
	body, err := toNetwork(n)
	if err != nil {
		return err
	}
	if n.Online != b.spec.Network.Online {
		return sandpit.Errorf(sandpit.Conflict, "a sandbox cannot get or lose its network")
	}
	if !n.Online {
		return nil
	}
	if err := b.p.api.setNetwork(ctx, b.h.ID, b.h.Cloud, body); err != nil {
		return b.asGone(err)
	}
	b.p.changeInfo(b.h.Cloud, func(known *sandboxInfo) { known.network = &n })
	return nil
}
