package e2b

import (
	"context"
	"fmt"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

// change begins an operation on a sandbox, whose state is read first, and ends it.
func (b *sandbox) change(ctx context.Context, doing string, do func(sandpit.State) error) error {
	err := b.changeLocked(ctx, do)
	if err != nil {
		return sandpit.WithSubject(fmt.Errorf("%s sandbox %s: %w", doing, b.h.ID, err), sandpit.Subject{Provider: Name, Sandbox: b.h.ID, Operation: doing})
	}
	return nil
}

func (b *sandbox) changeLocked(ctx context.Context, do func(sandpit.State) error) error {
	if b.isEnded() {
		return b.goneError()
	}
	if err := b.lock(ctx); err != nil {
		return err
	}
	defer b.unlock()
	state, err := b.readState(ctx)
	if err != nil {
		return b.asGone(err)
	}
	return b.asGone(do(state))
}

// pause pauses a running sandbox, with or without its memory. A lost response is settled by the state.
func (b *sandbox) pause(ctx context.Context, memory bool) error {
	err := b.p.api.pauseSandbox(ctx, b.h.ID, b.h.Cloud, memory)
	if cloudapi.MayHaveHappened(err) && ctx.Err() == nil {
		if one, describeErr := b.p.api.describeSandbox(ctx, b.h.ID, b.h.Cloud); describeErr == nil && one.State == statePaused {
			err = nil
		}
	}
	if err != nil {
		return err
	}
	state := sandpit.StatePaused
	if !memory {
		state = sandpit.StateStopped
	}
	b.p.changeInfo(b.h.Cloud, func(known *sandboxInfo) { known.filesOnly = !memory })
	b.setState(state)
	return nil
}

// resume resumes a paused sandbox, or starts a stopped one, until its expiry.
func (b *sandbox) resume(ctx context.Context) error {
	b.mu.Lock()
	expiry := b.expiry
	b.mu.Unlock()
	timeout, err := b.p.timeoutOf(expiry, time.Now())
	if err != nil {
		return err
	}
	if err := b.refreshAccess(ctx, timeout); err != nil {
		return err
	}
	b.p.changeInfo(b.h.Cloud, func(known *sandboxInfo) { known.filesOnly = false })
	b.setState(sandpit.StateRunning)
	return b.openGuest(ctx, guestSetup{})
}

// Pause implements sandpit.Pauser. The cloud stores the memory and the files of a paused sandbox.
func (i *Instance) Pause(ctx context.Context) error {
	return i.b.change(ctx, "pause", func(state sandpit.State) error {
		if state != sandpit.StateRunning {
			return i.b.stateError(state)
		}
		return i.b.pause(ctx, true)
	})
}

// Suspend implements sandpit.Suspender: the cloud stores the memory of every paused sandbox on disk.
func (i *Instance) Suspend(ctx context.Context) error {
	return i.b.change(ctx, "suspend", func(state sandpit.State) error {
		i.b.mu.Lock()
		suspended := i.b.suspended
		i.b.mu.Unlock()
		switch {
		case state == sandpit.StateRunning:
			if err := i.b.pause(ctx, true); err != nil {
				return err
			}
		case state != sandpit.StatePaused || suspended:
			return i.b.stateError(state)
		}
		i.b.mu.Lock()
		defer i.b.mu.Unlock()
		i.b.suspended = true
		return nil
	})
}

// Resume implements sandpit.Pauser.
func (i *Instance) Resume(ctx context.Context) error {
	return i.b.change(ctx, "resume", func(state sandpit.State) error {
		if state != sandpit.StatePaused {
			return sandpit.Errorf(sandpit.Conflict, "it is %s", state)
		}
		return i.b.resume(ctx)
	})
}

// Stop implements sandpit.Stopper: the cloud stores the files.
func (i *Instance) Stop(ctx context.Context) error {
	return i.b.change(ctx, "stop", func(state sandpit.State) error {
		if state != sandpit.StateRunning {
			return i.b.stateError(state)
		}
		return i.b.pause(ctx, false)
	})
}

// Start implements sandpit.Stopper. A sandbox that another program has stopped is known as paused.
func (i *Instance) Start(ctx context.Context) error {
	return i.b.change(ctx, "start", func(state sandpit.State) error {
		i.b.mu.Lock()
		suspended := i.b.suspended
		i.b.mu.Unlock()
		if state != sandpit.StateStopped && state != sandpit.StatePaused || suspended {
			return sandpit.Errorf(sandpit.Conflict, "it is %s", state)
		}
		return i.b.resume(ctx)
	})
}

// Renew implements sandpit.Renewer. The action at the expiry cannot change: Unsupported. The new expiry of a sandbox that
// does not run applies when it is resumed.
func (i *Instance) Renew(ctx context.Context, e sandpit.Expiry) error {
	return i.b.change(ctx, "renew", func(state sandpit.State) error {
		if err := i.b.checkAction(e.Action); err != nil {
			return err
		}
		timeout, err := i.b.p.timeoutOf(e, time.Now())
		if err != nil {
			return err
		}
		if state == sandpit.StateRunning {
			if err := i.b.p.api.setTimeout(ctx, i.b.h.ID, i.b.h.Cloud, timeout); err != nil {
				return err
			}
		}
		i.b.mu.Lock()
		defer i.b.mu.Unlock()
		i.b.expiry = e
		return nil
	})
}

// checkAction returns Unsupported if the cloud does something else at the expiry. That is fixed at the creation.
func (b *sandbox) checkAction(action sandpit.Action) error {
	b.mu.Lock()
	is := b.onTimeout
	b.mu.Unlock()
	wanted := "pause"
	if action == "" || action == sandpit.ActionKill {
		wanted = "kill"
	}
	if is != "" && is != wanted {
		return sandpit.Errorf(sandpit.Unsupported, "action %q at the expiry: the sandbox was created with %q, and E2B cannot change that", action, is)
	}
	return nil
}

// ReadState implements sandpit.StateReader.
func (i *Instance) ReadState(ctx context.Context) (sandpit.State, error) { return i.b.readState(ctx) }
