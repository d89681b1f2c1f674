package fake

import (
	"context"

	"github.com/sandpit-dev/sandpit"
)

// StopOnItsOwn makes a World stop, pause or archive a running sandbox without a request, as a cloud
// does when nothing uses it: Instance.Wait returns the state until the sandbox runs again. to is
// Paused, Suspended, Stopped or Archived.
//
// NotFound: no such sandbox. Conflict: it does not run. Invalid: another state.
func (w *World) StopOnItsOwn(ctx context.Context, id sandpit.ID, to State) error {
	b, err := w.findSandbox(id)
	if err != nil {
		return err
	}
	switch to {
	case Paused:
		err = b.pauseSandbox(ctx)
	case Suspended:
		err = b.suspendSandbox(ctx)
	case Stopped, Archived:
		err = b.stopSandbox(ctx)
	default:
		return sandpit.Errorf(sandpit.Invalid, "stop sandbox %s: state %q", id, to)
	}
	if err == nil && to == Archived {
		err = b.archiveFiles(ctx)
	}
	if err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.own)
	return nil
}

// RunOnItsOwn makes a World start or resume a sandbox without a request, as a person can do in a
// cloud's console. NotFound: no such sandbox. Conflict: it is neither paused nor stopped.
func (w *World) RunOnItsOwn(ctx context.Context, id sandpit.ID) error {
	b, err := w.findSandbox(id)
	if err != nil {
		return err
	}
	if b.currentState() == Stopped {
		return b.startSandbox(ctx)
	}
	return b.resumeSandbox(ctx)
}

// ownChange returns a channel that is closed while the World has stopped the sandbox by itself.
func (b *sandbox) ownChange() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.own
}

// ownExit returns how the World has stopped the sandbox by itself.
func (b *sandbox) ownExit() sandpit.Exit {
	state := b.currentState().toState()
	if state == "" { // it was ended meanwhile
		<-b.ended
		return b.exit
	}
	return sandpit.Exit{State: state, Reason: "the provider has " + string(state) + " the sandbox"}
}

// endOwnChange records that the sandbox runs. The caller holds mu.
func (b *sandbox) endOwnChange() {
	select {
	case <-b.own:
		b.own = make(chan struct{})
	default:
	}
}

// toState returns a state in the terms of the contract, or "" for one that does not last.
func (s State) toState() sandpit.State {
	switch s {
	case Running:
		return sandpit.StateRunning
	case Paused, Suspended:
		return sandpit.StatePaused
	case Stopped:
		return sandpit.StateStopped
	case Archived:
		return sandpit.StateArchived
	default:
		return ""
	}
}

// ReadState implements sandpit.StateReader.
func (i *Instance) ReadState(ctx context.Context) (sandpit.State, error) {
	var state sandpit.State
	err := i.performOp(ctx, OpReadState, func() error {
		if state = i.box.currentState().toState(); state == "" {
			return sandpit.Errorf(sandpit.NotFound, "it has ended")
		}
		return nil
	})
	return state, err
}

// Renew implements sandpit.Renewer. The World records the expiry; it never acts on it.
func (i *Instance) Renew(ctx context.Context, e sandpit.Expiry) error {
	return i.performOp(ctx, OpRenew, func() error {
		i.box.mu.Lock()
		defer i.box.mu.Unlock()
		if i.box.state == Ended {
			return i.box.stateError(Ended)
		}
		i.box.expiry = e
		return nil
	})
}

// Cloud is a Provider that belongs to an account.
type Cloud struct {
	*Provider

	account sandpit.Account
}

var (
	_ sandpit.Provider      = (*Cloud)(nil)
	_ sandpit.AccountReader = (*Cloud)(nil)
)

// NewCloud returns another Provider of this World, with an account.
func (w *World) NewCloud(account sandpit.Account) *Cloud { return &Cloud{w.NewProvider(), account} }

// ReadAccount implements sandpit.AccountReader.
func (c *Cloud) ReadAccount(ctx context.Context) (sandpit.Account, error) {
	var account sandpit.Account
	err := c.performOp(ctx, OpReadAccount, "", func() error {
		account = c.account
		account.Sandboxes = len(c.world.listSandboxes())
		return nil
	})
	return account, err
}
