package manager

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// The functions below return the provider's function for a transition, nil if it has none.

func pauseFunc(i sandpit.Instance) func(context.Context) error {
	if p, ok := as[sandpit.Pauser](i); ok {
		return p.Pause
	}
	return nil
}

func suspendFunc(i sandpit.Instance) func(context.Context) error {
	if s, ok := as[sandpit.Suspender](i); ok {
		return s.Suspend
	}
	return nil
}

func checkpointFunc(i sandpit.Instance) func(context.Context) error {
	if c, ok := as[sandpit.Checkpointer](i); ok {
		return c.Checkpoint
	}
	return nil
}

func resumeFunc(i sandpit.Instance) func(context.Context) error {
	if p, ok := as[sandpit.Pauser](i); ok {
		return p.Resume
	}
	return nil
}

// stopFunc also stops a paused sandbox, which providers do not: it resumes the sandbox first.
func stopFunc(i sandpit.Instance) func(context.Context) error {
	s, ok := as[sandpit.Stopper](i)
	if !ok {
		return nil
	}
	return func(ctx context.Context) error {
		err := s.Stop(ctx)
		p, pauses := as[sandpit.Pauser](i)
		if !errors.Is(err, sandpit.Conflict) || !pauses {
			return err
		}
		switch resumed := p.Resume(ctx); {
		case errors.Is(resumed, sandpit.Conflict):
			return err // not paused, so already stopped
		case resumed != nil:
			return resumed
		}
		return s.Stop(ctx)
	}
}

func startFunc(i sandpit.Instance) func(context.Context) error {
	if s, ok := as[sandpit.Stopper](i); ok {
		return s.Start
	}
	return nil
}

// resumeOrStartFunc resumes a sandbox or starts it, whichever applies.
func resumeOrStartFunc(i sandpit.Instance) func(context.Context) error {
	p, s := resumeFunc(i), startFunc(i)
	switch {
	case p == nil:
		return s
	case s == nil:
		return p
	}
	return func(ctx context.Context) error {
		err := p(ctx)
		if errors.Is(err, sandpit.Conflict) {
			return s(ctx)
		}
		return err
	}
}

// recoverFunc returns a function that lets a sandbox run, whichever state its provider has it in.
func recoverFunc(i sandpit.Instance) func(context.Context) error {
	run, restore, start := resumeOrStartFunc(i), restoreFunc(i), startFunc(i)
	if run == nil || restore == nil || start == nil {
		return run
	}
	return func(ctx context.Context) error {
		err := run(ctx)
		if errors.Is(err, sandpit.Conflict) && restore(ctx) == nil { // it was archived
			return start(ctx)
		}
		return err
	}
}

func archiveFunc(i sandpit.Instance) func(context.Context) error {
	if a, ok := as[sandpit.Archiver](i); ok {
		return a.Archive
	}
	return nil
}

func restoreFunc(i sandpit.Instance) func(context.Context) error {
	if a, ok := as[sandpit.Archiver](i); ok {
		return a.Restore
	}
	return nil
}

// checkAbility refuses an action that an instance does not support.
func checkAbility(i sandpit.Instance, a sandpit.Action) error {
	switch a {
	case sandpit.ActionStop:
		if stopFunc(i) == nil {
			return sandpit.Errorf(sandpit.Unsupported, "this provider's sandboxes cannot be stopped, which the request asks for")
		}
	case sandpit.ActionPause:
		if pauseFunc(i) == nil {
			return sandpit.Errorf(sandpit.Unsupported, "this provider's sandboxes cannot be paused, which the request asks for")
		}
	case sandpit.ActionSuspend:
		if suspendFunc(i) == nil {
			return sandpit.WithHint(
				sandpit.Errorf(sandpit.Unsupported, "this provider's sandboxes cannot be suspended, which the request asks for"),
				"choose stop or pause")
		}
	default: // everything can be deleted
	}
	return nil
}

// keepingActions are the actions that keep a sandbox's files, best first: a suspended sandbox loses
// nothing and uses no memory, a stopped one has its files, a paused one continues to use memory.
func keepingActions() []sandpit.Action {
	return []sandpit.Action{sandpit.ActionSuspend, sandpit.ActionStop, sandpit.ActionPause}
}

// bestKeepingAction returns the best action that an instance supports and that is not among the
// refused ones, or "". It never returns one that deletes the sandbox.
func bestKeepingAction(i sandpit.Instance, refused ...sandpit.Action) sandpit.Action {
	for _, a := range keepingActions() {
		if !slices.Contains(refused, a) && checkAbility(i, a) == nil {
			return a
		}
	}
	return ""
}

// completePolicy checks a policy against what an instance supports, and fills in the idle action if
// the policy has none: the server's, or one that keeps the files where the instance does not
// support the server's. An instance that can keep nothing is never idle.
func (c *core) completePolicy(i sandpit.Instance, p store.Policy) (store.Policy, error) {
	if err := cmp.Or(checkAbility(i, p.IdleAction), checkPolicyAbilities(i, p)); err != nil {
		return p, err
	}
	if p.IdleAction != "" {
		return p, nil
	}
	if p.IdleAction = c.o.IdleAction; checkAbility(i, p.IdleAction) != nil {
		p.IdleAction = bestKeepingAction(i)
	}
	if p.IdleAction == "" {
		p.IdleTimeout = 0
	}
	return p, nil
}

// checkPolicyAbilities refuses what a policy asks for and an instance does not support.
func checkPolicyAbilities(i sandpit.Instance, p store.Policy) error {
	if p.AutoStop > 0 {
		if err := checkAbility(i, sandpit.ActionStop); err != nil {
			return err
		}
	}
	for _, want := range []struct {
		asked bool
		do    func(context.Context) error
		what  string
	}{
		{p.AutoSuspend > 0, suspendFunc(i), "suspended"},
		{p.AutoArchive > 0, archiveFunc(i), "archived"},
		{p.CheckpointEvery > 0, checkpointFunc(i), "checkpointed"},
	} {
		if want.asked && want.do == nil {
			return sandpit.Errorf(sandpit.Unsupported, "this provider's sandboxes cannot be %s, which the request asks for", want.what)
		}
	}
	return nil
}
