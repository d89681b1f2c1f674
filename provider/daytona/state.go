package daytona

import (
	"context"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/reach/cloudapi"
)

// state is a state of a sandbox in the terms of the API.
type state string

// The states that last. All others, unknown ones included, are transitions.
const (
	stateStarted     state = "started"
	stateStopped     state = "stopped"
	statePaused      state = "paused"
	stateArchived    state = "archived"
	stateError       state = "error"
	stateBuildFailed state = "build_failed"
	stateDestroying  state = "destroying"
	stateDestroyed   state = "destroyed"
)

// toState returns a state in the terms of sandpit, or "" for a transition, an error and the end.
func (s state) toState() sandpit.State {
	switch s {
	case stateStarted:
		return sandpit.StateRunning
	case stateStopped:
		return sandpit.StateStopped
	case statePaused:
		return sandpit.StatePaused
	case stateArchived:
		return sandpit.StateArchived
	default:
		return ""
	}
}

// isGone reports whether the sandbox no longer exists.
func (s state) isGone() bool { return s == stateDestroyed || s == stateDestroying }

// hasFailed reports whether the sandbox does not leave the state by itself.
func (s state) hasFailed() bool { return s == stateError || s == stateBuildFailed }

// The delays between two looks at a sandbox whose state changes.
const (
	firstLook = 100 * time.Millisecond
	lastLook  = time.Second
)

// awaitState waits until a sandbox is in one of some states.
//
// Gone: it was deleted. Timeout: it takes longer than limit. NotFound, Exhausted, Invalid, Conflict:
// it has failed, see failureError.
func (p *Provider) awaitState(ctx context.Context, id sandpit.ID, ref string, limit time.Duration, want ...state) (box, error) {
	limited, cancel := context.WithTimeoutCause(ctx, limit, errLate)
	defer cancel()
	now := box{State: "unknown"}
	for delay := firstLook; ; delay = min(delay*5/4, lastLook) {
		b, err := p.control.getBox(limited, id, ref)
		switch {
		case sandpit.CodeOf(err) == sandpit.NotFound:
			b.State = stateDestroyed
		case err != nil && limited.Err() == nil:
			return b, err
		case err != nil:
			return now, p.lateError(ctx, limited, id, now.State, limit)
		}
		now = b
		switch {
		case slices.Contains(want, b.State):
			return b, nil
		case b.State.isGone():
			return b, sandpit.Errorf(sandpit.Gone, "sandbox %s was deleted at Daytona", id)
		case b.State.hasFailed():
			return b, p.failureError(id, b)
		}
		select {
		case <-time.After(delay):
		case <-limited.Done():
			return now, p.lateError(ctx, limited, id, now.State, limit)
		}
	}
}

var errLate = sandpit.Errorf(sandpit.Timeout, "it takes too long")

// lateError returns the error of a wait that has ended early.
func (p *Provider) lateError(ctx, limited context.Context, id sandpit.ID, now state, limit time.Duration) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	_ = limited // its cause is the limit
	return sandpit.WithHint(sandpit.Errorf(sandpit.Timeout, "sandbox %s is still %q at Daytona after %v", id, string(now), limit.Round(time.Millisecond)),
		"try again: large images take long the first time")
}

// startBox starts a sandbox unless it runs, whatever state it is in: it waits for transitions to
// end, starts a stopped, archived or paused sandbox, and recovers one after an error from which
// Daytona can recover.
//
// Gone, Timeout and others as awaitState.
func (p *Provider) startBox(ctx context.Context, id sandpit.ID, ref string, limit time.Duration) (box, error) {
	end := time.Now().Add(limit)
	recovered := false
	for doubts := 0; ; {
		b, err := p.awaitLasting(ctx, id, ref, time.Until(end))
		operation := "start"
		switch {
		case err != nil:
			return b, err
		case b.State == stateStarted:
			return b, nil
		case b.State.isGone():
			return b, sandpit.Errorf(sandpit.Gone, "sandbox %s was deleted at Daytona", id)
		case b.State.hasFailed() && (!b.Recoverable || recovered):
			return b, p.failureError(id, b)
		case b.State.hasFailed():
			operation, recovered = "recover", true
		}
		_, err = p.control.change(ctx, id, ref, operation)
		switch {
		case err == nil, sandpit.CodeOf(err) == sandpit.Conflict: // another change: the next look tells
		case cloudapi.MayHaveHappened(err) && ctx.Err() == nil && doubts < maxDoubts:
			doubts++ // as above, and if it was not carried out, it is sent again
		default:
			return b, asGone(err)
		}
		if err != nil {
			select {
			case <-time.After(firstLook):
			case <-ctx.Done():
				return b, context.Cause(ctx)
			}
		}
	}
}

// maxDoubts is how often a start is repeated whose response was lost.
const maxDoubts = 2

// awaitLasting waits until the state of a sandbox is not a transition.
func (p *Provider) awaitLasting(ctx context.Context, id sandpit.ID, ref string, limit time.Duration) (box, error) {
	b, err := p.awaitState(ctx, id, ref, limit, stateStarted, stateStopped, statePaused, stateArchived, stateError, stateBuildFailed, stateDestroying, stateDestroyed)
	return b, err
}

// asGone replaces NotFound by Gone: an instance whose sandbox is not found has ended.
func asGone(err error) error {
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return sandpit.Errorf(sandpit.Gone, "%w", err)
	}
	return err
}
