package e2b

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/liveness"
)

// sandbox is the state of one sandbox of a Provider. The cloud and other programs may change the sandbox, so the state is
// what is known, and is read again before a call fails because of it.
type sandbox struct {
	p    *Provider
	h    handle
	spec sandpit.Spec

	link    *link
	monitor *liveness.Monitor
	guest   *switchGuest

	lifecycle chan struct{} // full while an operation changes the state
	cpu       cpuMeter

	mu        sync.Mutex
	state     sandpit.State
	suspended bool // Suspend has paused it, or confirmed that
	expiry    sandpit.Expiry
	onTimeout string        // what the cloud does at the expiry: "kill" or "pause"; "" is unknown
	ended     chan struct{} // closed when it has ended
	exit      sandpit.Exit  // set before
}

func newSandbox(p *Provider, h handle, spec sandpit.Spec) *sandbox {
	b := &sandbox{
		p: p, h: h, spec: publicSpec(spec), state: sandpit.StateRunning, expiry: spec.Expiry,
		lifecycle: make(chan struct{}, 1), ended: make(chan struct{}),
	}
	b.link = &link{b: b}
	b.monitor = liveness.New(h.ID, b.probeGuest, liveness.Options{})
	b.guest = newSwitchGuest(b)
	return b
}

func (b *sandbox) setAccess(a access) { b.link.access.Store(&a) }

func (b *sandbox) setState(state sandpit.State) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.setStateLocked(state)
}

func (b *sandbox) setStateLocked(state sandpit.State) {
	if state != b.state {
		b.suspended = false
	}
	b.state = state
}

func (b *sandbox) currentState() sandpit.State {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.state
}

func (b *sandbox) isEnded() bool {
	select {
	case <-b.ended:
		return true
	default:
		return false
	}
}

// end records that the sandbox has ended.
func (b *sandbox) end(exit sandpit.Exit) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.isEnded() {
		return
	}
	b.exit = exit
	close(b.ended)
	b.p.forget(b.h.Cloud)
}

// goneError is the error of calls after the end.
func (b *sandbox) goneError() error {
	return sandpit.Errorf(sandpit.Gone, "sandbox %s has ended", b.h.ID)
}

// stateError returns why a sandbox in a state cannot be used, or nil.
func (b *sandbox) stateError(state sandpit.State) error {
	switch state {
	case sandpit.StateRunning:
		return nil
	case sandpit.StatePaused, sandpit.StateStopped:
		return sandpit.Errorf(sandpit.Conflict, "sandbox %s is %s", b.h.ID, state)
	default:
		return sandpit.Errorf(sandpit.Unavailable, "sandbox %s: the cloud reports no known state", b.h.ID)
	}
}

// readState asks the cloud for the state and records it. NotFound: the sandbox has ended.
func (b *sandbox) readState(ctx context.Context) (sandpit.State, error) {
	if b.isEnded() {
		return "", sandpit.Errorf(sandpit.NotFound, "sandbox %s has ended", b.h.ID)
	}
	one, err := b.p.api.describeSandbox(ctx, b.h.ID, b.h.Cloud)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		b.end(sandpit.Exit{Reason: "the cloud has no such sandbox any more: it was killed, or reached its expiry"})
	}
	if err != nil {
		return "", err
	}
	if one.State == stateRunning {
		b.p.changeInfo(b.h.Cloud, func(known *sandboxInfo) { known.filesOnly = false })
	}
	state := stateOf(one.State, b.p.info(b.h.Cloud))
	b.mu.Lock()
	defer b.mu.Unlock()
	b.onTimeout = one.Lifecycle.OnTimeout
	b.setStateLocked(state)
	return state, nil
}

// asGone converts NotFound to Gone, which the contract demands from calls of an existing instance.
func (b *sandbox) asGone(err error) error {
	if sandpit.CodeOf(err) == sandpit.NotFound {
		b.end(sandpit.Exit{Reason: "the cloud has no such sandbox any more: it was killed, or reached its expiry"})
		return sandpit.Errorf(sandpit.Gone, "sandbox %s has ended: %w", b.h.ID, errors.New(err.Error()))
	}
	return err
}

// checkUsable returns an error if the sandbox does not run. If it was known not to run, and runs again, the access is
// renewed.
func (b *sandbox) checkUsable(ctx context.Context) error {
	switch {
	case b.isEnded():
		return b.goneError()
	case b.p.isClosed():
		return errClosed
	case b.currentState() == sandpit.StateRunning && b.link.access.Load() != nil:
		return nil
	}
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer b.unlock()
	state, err := b.readState(ctx)
	if err != nil {
		return b.asGone(err)
	}
	if err := b.stateError(state); err != nil {
		return err
	}
	return b.openRunning(ctx)
}

// openRunning renews the access to a sandbox that runs again, and opens its guest.
func (b *sandbox) openRunning(ctx context.Context) error {
	if err := b.refreshAccess(ctx, time.Second); err != nil {
		return err
	}
	return b.openGuest(ctx, guestSetup{})
}

// refreshAccess fetches the tokens again. The sandbox then runs for at least the timeout; a paused one is resumed.
func (b *sandbox) refreshAccess(ctx context.Context, timeout time.Duration) error {
	a, err := b.p.api.connectSandbox(ctx, b.h.ID, b.h.Cloud, timeout)
	if err != nil {
		return b.asGone(err)
	}
	b.setAccess(a)
	return nil
}

// lock begins an operation that changes the state.
func (b *sandbox) lock(ctx context.Context) error {
	select {
	case b.lifecycle <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (b *sandbox) unlock() { <-b.lifecycle }
