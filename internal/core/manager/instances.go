package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// instances attaches to the instances of sandboxes and watches them.
type instances struct {
	audit    *guestAudit
	core     *core
	identity string
	log      *slog.Logger
	o        *Options
	onEnd    func(context.Context, *box, sandpit.Instance, sandpit.Exit) error // handles the end of an instance
}

// as returns an ability of an instance, if it has it.
func as[T any](i sandpit.Instance) (T, bool) {
	ability, ok := i.(T)
	return ability, ok
}

// ensureAttached returns the instance of a sandbox, and attaches to it first if that has
// not happened since the manager was opened. Only who has the turn may call it.
// NotFound: the provider does not know it.
func (is *instances) ensureAttached(ctx context.Context, b *box) (sandpit.Instance, error) {
	if i := b.placed(); i != nil {
		return i, nil
	}
	row := b.look()
	if len(row.Handle) == 0 {
		return nil, sandpit.Errorf(sandpit.NotFound, "sandbox %s was never made", b.id)
	}
	i, err := is.attachHandle(ctx, b, row.Handle)
	if err != nil {
		return nil, err
	}
	is.recordInstance(b, i)
	return i, nil
}

// attachHandle asks a provider for an instance and makes sure that it is the right one.
func (is *instances) attachHandle(ctx context.Context, b *box, handle []byte) (sandpit.Instance, error) {
	if b.provider == nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "sandbox %s: its provider %q is not configured", b.id, b.look().Provider)
	}
	i, err := call(ctx, is.core.loops, is.core.newCall("attach"), func(ctx context.Context) (sandpit.Instance, error) {
		return b.provider.Attach(ctx, handle)
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("attach to sandbox %s: %w", b.id, err)
	}
	if i.ID() != b.id {
		return nil, sandpit.Errorf(sandpit.Internal, "attach to sandbox %s: the provider answered with %.64q", b.id, string(i.ID()))
	}
	is.audit.observeGuest(b, i)
	return i, nil
}

func (c *core) newCall(what string) remote { return remote{what: what, limit: c.o.CallTimeout} }

// recordInstance keeps an instance and watches for its end.
func (is *instances) recordInstance(b *box, i sandpit.Instance) {
	if b.place(i) {
		is.core.loops.start(func(ctx context.Context) { is.watchInstance(ctx, b, i) })
	}
}

// The pauses between two tries to watch an instance.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// watchInstance waits for the end of an instance.
func (is *instances) watchInstance(ctx context.Context, b *box, i sandpit.Instance) {
	pause := firstPause
	for ctx.Err() == nil && b.placed() == i {
		exit, err := call(ctx, is.core.loops, remote{what: "wait"}, i.Wait, nil)
		if errors.Is(err, sandpit.NotFound) || errors.Is(err, sandpit.Gone) {
			exit, err = sandpit.Exit{}, nil
		}
		if err == nil {
			err = is.core.runLocked(ctx, b, func(ctx context.Context, b *box) error { return is.onEnd(ctx, b, i, exit) })
			if err == nil {
				return
			}
		}
		if ctx.Err() != nil || errors.Is(err, errClosed) {
			return // the manager ends, and the next one looks again
		}
		is.log.WarnContext(ctx, "the end of a sandbox cannot be seen, or dealt with", slog.String("sandbox", string(b.id)), slog.Any("error", err))
		if sleep(ctx, pause) != nil {
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// pingGuest returns nil if the guest answers. It is Conflict if the sandbox does not
// run.
func (is *instances) pingGuest(ctx context.Context, b *box) error {
	_, err := is.listProcesses(ctx, b)
	return err
}

func (is *instances) listProcesses(ctx context.Context, b *box) ([]sandpit.ProcessInfo, error) {
	i, err := is.ensureAttached(ctx, b)
	if err != nil {
		return nil, err
	}
	return call(ctx, is.core.loops, remote{what: "ask the guest", limit: min(guestLimit, is.o.CallTimeout)}, i.Guest().ListProcesses, nil)
}

// destroyInstance removes what a provider has of a sandbox. A provider that does not know it has
// nothing of it.
func (is *instances) destroyInstance(ctx context.Context, b *box) error {
	i, err := is.locateInstance(ctx, b)
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = call(ctx, is.core.loops, is.core.newCall("destroy sandbox "+string(b.id)), none(i.Destroy), nil)
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	return err
}

// locateInstance finds the instance of a sandbox that may not have been made: then nobody
// has been told its handle, but the provider lists it. NotFound: there is none.
func (is *instances) locateInstance(ctx context.Context, b *box) (sandpit.Instance, error) {
	if i := b.placed(); i != nil {
		return i, nil
	}
	if row := b.look(); len(row.Handle) > 0 {
		return is.attachHandle(ctx, b, row.Handle)
	}
	list, err := is.listPlacements(ctx, b.provider)
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		if p.ID == b.id && p.Spec.Labels[Label] == is.identity {
			return is.attachHandle(ctx, b, p.Handle)
		}
	}
	return nil, notFound(b.id)
}

func (is *instances) listPlacements(ctx context.Context, p sandpit.Provider) ([]sandpit.Placement, error) {
	if p == nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "list sandboxes: the provider is not configured")
	}
	return call(ctx, is.core.loops, is.core.newCall("list sandboxes"), p.List, nil)
}
