package fake

import (
	"context"
	"crypto/rand"

	"github.com/sandpit-dev/sandpit"
)

// Claim implements sandpit.Claimer.
func (i *Instance) Claim(ctx context.Context, spec sandpit.Spec) error {
	return i.performOp(ctx, OpClaim, func() error {
		b := i.box
		if err := b.lockInState(ctx, Running); err != nil {
			return err
		}
		defer b.unlock()
		made, token := b.identityOf()
		if err := validateSpec(spec); err != nil {
			return err
		}
		if !made.SameMachine(spec) {
			return sandpit.Errorf(sandpit.Invalid, "cannot change image, mounts, limits or host name of an existing sandbox")
		}
		b.setIdentity(spec, rand.Text())
		req := b.guestDefaults()
		_, req.Token = b.identityOf()
		req.Forget = true
		if err := i.guest.client.Init(ctx, req); err != nil {
			b.setIdentity(made, token) // the guest still has the old key
			return err
		}
		return nil
	})
}

// identityOf returns the owner of a sandbox, and the key of its guest.
func (b *sandbox) identityOf() (sandpit.Spec, string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.spec, b.token
}

func (b *sandbox) setIdentity(spec sandpit.Spec, token string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.spec, b.token = spec.Clone(), token
}
