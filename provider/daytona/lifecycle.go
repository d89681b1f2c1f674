package daytona

import (
	"context"
	"net/http"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

// Stop implements sandpit.Stopper.
func (i *Instance) Stop(ctx context.Context) error {
	return i.b.whileLocked(ctx, "stop", func(ctx context.Context) error {
		if _, err := i.b.requireState(ctx, stateStarted); err != nil {
			return err
		}
		return i.b.moveTo(ctx, "stop", stateStopped)
	})
}

// Start implements sandpit.Stopper.
func (i *Instance) Start(ctx context.Context) error {
	return i.b.whileLocked(ctx, "start", func(ctx context.Context) error {
		if _, err := i.b.requireState(ctx, stateStopped); err != nil {
			return err
		}
		return i.b.run(ctx)
	})
}

// Pause implements sandpit.Pauser. Daytona saves a paused sandbox, and closes connections into it, so
// that Suspend has nothing to do after it.
func (i *Instance) Pause(ctx context.Context) error {
	return i.b.whileLocked(ctx, "pause", func(ctx context.Context) error {
		if err := i.b.pause(ctx); err != nil {
			return err
		}
		i.b.setPaused(true)
		return nil
	})
}

// Suspend implements sandpit.Suspender.
func (i *Instance) Suspend(ctx context.Context) error {
	return i.b.whileLocked(ctx, "suspend", func(ctx context.Context) error {
		if !i.b.setPaused(false) {
			return i.b.pause(ctx)
		}
		_, err := i.b.requireState(ctx, statePaused)
		return err
	})
}

// setPaused records whether Pause, and not Suspend, has paused the sandbox. It returns what was
// recorded before.
func (b *sandbox) setPaused(paused bool) (before bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before, b.paused = b.paused, paused
	return before
}

// pause pauses the sandbox. The caller holds the lock.
//
// Unsupported: Daytona does not pause sandboxes of this class.
func (b *sandbox) pause(ctx context.Context) error {
	if _, err := b.requireState(ctx, stateStarted); err != nil {
		return err
	}
	err := b.moveTo(ctx, "pause", statePaused)
	if cloudapi.StatusOf(err) == http.StatusUnprocessableEntity {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "Daytona cannot pause sandboxes of this class: %w", err), "stop it instead: its files are kept")
	}
	return err
}

// Resume implements sandpit.Pauser.
func (i *Instance) Resume(ctx context.Context) error {
	return i.b.whileLocked(ctx, "resume", func(ctx context.Context) error {
		if _, err := i.b.requireState(ctx, statePaused); err != nil {
			return err
		}
		now, err := i.b.p.startBox(ctx, i.b.id, i.b.ref, i.b.p.o.StartTimeout)
		if err != nil {
			return err
		}
		i.b.setPaused(false)
		i.b.recordChange(sandpit.StateRunning)
		i.b.applyBox(now, i.b.moveCount())
		return i.b.ensureGuest(ctx, now)
	})
}

// Archive implements sandpit.Archiver.
func (i *Instance) Archive(ctx context.Context) error {
	return i.b.whileLocked(ctx, "archive", func(ctx context.Context) error {
		if _, err := i.b.requireState(ctx, stateStopped); err != nil {
			return err
		}
		return i.b.moveTo(ctx, "archive", stateArchived)
	})
}

// Restore implements sandpit.Archiver. Daytona restores a sandbox by starting it, so it is stopped
// again.
func (i *Instance) Restore(ctx context.Context) error {
	return i.b.whileLocked(ctx, "restore", func(ctx context.Context) error {
		if _, err := i.b.requireState(ctx, stateArchived); err != nil {
			return err
		}
		if _, err := i.b.p.startBox(ctx, i.b.id, i.b.ref, i.b.p.o.StartTimeout); err != nil {
			return err
		}
		return i.b.moveTo(ctx, "stop", stateStopped)
	})
}

// moveTo requests a change and waits for the state that it leads to. The caller holds the lock.
func (b *sandbox) moveTo(ctx context.Context, operation string, to state) error {
	b.recordChange(b.currentState()) // reports from before the request are obsolete
	_, err := b.p.control.change(ctx, b.id, b.ref, operation)
	switch {
	case err == nil:
		_, err = b.p.awaitState(ctx, b.id, b.ref, b.p.o.StartTimeout, to)
	case cloudapi.MayHaveHappened(err) || sandpit.CodeOf(err) == sandpit.Conflict:
		if b.hasMoved(ctx, to) {
			err = nil
		}
	}
	if err == nil {
		b.recordChange(to.toState())
		return nil
	}
	if sandpit.CodeOf(asGone(err)) == sandpit.Gone {
		b.recordEnd(sandpit.Exit{Reason: "the sandbox was deleted at Daytona"})
		return asGone(err)
	}
	clean, cancel := b.p.cleanupContext(ctx)
	defer cancel()
	if now, readErr := b.p.control.getBox(clean, b.id, b.ref); readErr == nil && now.State.toState() != "" {
		b.recordChange(now.State.toState()) // the request may have been carried out
	}
	return err
}

// hasMoved reports whether the sandbox is in the state to which a request leads that has failed: it was
// carried out if only its response was lost, or if the network has delivered it twice.
func (b *sandbox) hasMoved(ctx context.Context, to state) bool {
	now, err := b.p.awaitLasting(ctx, b.id, b.ref, b.p.o.StartTimeout)
	return err == nil && now.State == to
}

// run starts the sandbox, its guest and its services. The caller holds the lock.
func (b *sandbox) run(ctx context.Context) error {
	now, err := b.p.startBox(ctx, b.id, b.ref, b.p.o.StartTimeout)
	if err != nil {
		return err
	}
	b.recordChange(sandpit.StateRunning)
	b.applyBox(now, b.moveCount())
	if err := b.ensureGuest(ctx, now); err != nil {
		return err
	}
	return b.startServices(ctx)
}

// ReadState implements sandpit.StateReader. It waits for a transition to end.
func (i *Instance) ReadState(ctx context.Context) (sandpit.State, error) {
	now, err := i.b.readBox(ctx)
	if err == nil && now.State.toState() == "" {
		now, err = i.b.p.awaitLasting(ctx, i.b.id, i.b.ref, i.b.p.o.StartTimeout)
	}
	switch {
	case sandpit.CodeOf(err) == sandpit.Gone:
		return "", sandpit.Errorf(sandpit.NotFound, "read the state: %w", err)
	case err != nil:
		return "", err
	}
	return now.State.toState(), nil
}
