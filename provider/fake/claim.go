package fake

import (
	"context"
	"crypto/rand"

	"github.com/sandpit-dev/sandpit"
)

// Claim implements sandpit.Claimer.
func (i *Instance) Claim(ctx context.Context, spec sandpit.Spec) error {
	return i.perform(ctx, OpClaim, func() error {
		b := i.box
		if err := b.in(ctx, Running); err != nil {
			return err
		}
		defer b.yield()
		made, token := b.identity()
		if err := validate(spec); err != nil {
			return err
		}
		if !made.SameMachine(spec) {
			return sandpit.Errorf(sandpit.Invalid, "image, mounts, limits and host name cannot be changed any more")
		}
		b.identify(spec, rand.Text())
		req := b.defaults()
		_, req.Token = b.identity()
		req.Forget = true
		if err := i.guest.client.Init(ctx, req); err != nil {
			b.identify(made, token) // the guest has the old key
			return err
		}
		return nil
	})
}

// identity returns whose sandbox it is, and the key of its guest.
func (b *box) identity() (sandpit.Spec, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spec, b.token
}

func (b *box) identify(spec sandpit.Spec, token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spec, b.token = spec.Clone(), token
}
