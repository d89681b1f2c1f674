package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// instances attaches to the instances of sandboxes and watches for their end.
type instances struct {
	audit    *guestAudit
	core     *core
	identity string
	log      *slog.Logger
	o        *Options
	onEnd    func(context.Context, *sandboxRecord, sandpit.Instance, sandpit.Exit) error // handles the end of an instance
}

// as returns an ability of an instance, if the instance has it.
func as[T any](i sandpit.Instance) (T, bool) {
	ability, ok := i.(T)
	return ability, ok
}

// ensureAttached returns the instance of a sandbox, after attaching to it if that has not happened
// since the manager was opened. The caller holds the lock. NotFound: the provider does not know the
// sandbox.
func (is *instances) ensureAttached(ctx context.Context, rec *sandboxRecord) (sandpit.Instance, error) {
	if i := rec.currentInstance(); i != nil {
		return i, nil
	}
	row := rec.currentRow()
	if len(row.Handle) == 0 {
		return nil, sandpit.Errorf(sandpit.NotFound, "sandbox %s was never created", rec.id)
	}
	i, err := is.attachHandle(ctx, rec, row.Handle)
	if err != nil {
		return nil, err
	}
	is.recordInstance(rec, i)
	return i, nil
}

// attachHandle attaches to an instance by its handle and checks that it is the right one.
func (is *instances) attachHandle(ctx context.Context, rec *sandboxRecord, handle []byte) (sandpit.Instance, error) {
	if rec.provider == nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "sandbox %s: its provider %q is not configured", rec.id, rec.currentRow().Provider)
	}
	i, err := callProvider(ctx, is.core.loops, is.core.newCallTo(rec.currentRow().Provider, "attach"), func(ctx context.Context) (sandpit.Instance, error) {
		return rec.provider.Attach(ctx, handle)
	}, nil)
	if err != nil {
		return nil, fmt.Errorf("attach to sandbox %s: %w", rec.id, err)
	}
	if i.ID() != rec.id {
		return nil, sandpit.Errorf(sandpit.Internal, "attach to sandbox %s: the provider returned %.64q", rec.id, string(i.ID()))
	}
	is.audit.observeGuest(rec, i)
	return i, nil
}

// opener is a provider that is opened when it is needed. Before that, sandpit.As does not find its
// abilities.
type opener interface {
	OpenProvider(ctx context.Context) (sandpit.Provider, error)
}

// findAbility returns an ability of the named provider, which is opened if need be. what names the
// ability.
//
// Unsupported: no such provider, or it does not have the ability.
func findAbility[T any](ctx context.Context, c *core, provider, what string) (ability T, err error) {
	p := c.o.Providers[provider]
	if p == nil {
		return ability, sandpit.Errorf(sandpit.Unsupported, "Unsupported provider type: %.100q", provider)
	}
	ability, ok := sandpit.As[T](p)
	if o, lazy := sandpit.As[opener](p); !ok && lazy {
		if p, err = callProvider(ctx, c.loops, c.newCallTo(provider, "open provider "+provider), o.OpenProvider, nil); err != nil {
			return ability, err
		}
		ability, ok = sandpit.As[T](p)
	}
	if !ok {
		return ability, sandpit.Errorf(sandpit.Unsupported, "provider %s has no %s", provider, what)
	}
	return ability, nil
}

// recordInstance sets the instance of a sandbox and starts to watch for its end.
func (is *instances) recordInstance(rec *sandboxRecord, i sandpit.Instance) {
	if rec.setInstance(i) {
		is.core.loops.start(func(ctx context.Context) { is.watchInstance(ctx, rec, i) })
	}
}

// The delays between two attempts to watch an instance.
const (
	firstPause = time.Second
	lastPause  = 30 * time.Second
)

// watchInstance waits for the end of an instance and handles it.
func (is *instances) watchInstance(ctx context.Context, rec *sandboxRecord, i sandpit.Instance) {
	pause := firstPause
	for ctx.Err() == nil && rec.currentInstance() == i {
		exit, err := callProvider(ctx, is.core.loops, providerCall{what: "wait"}, i.Wait, nil)
		if errors.Is(err, sandpit.NotFound) || errors.Is(err, sandpit.Gone) {
			exit, err = sandpit.Exit{}, nil
		}
		if err == nil {
			err = is.core.runLocked(ctx, rec, func(ctx context.Context, rec *sandboxRecord) error { return is.onEnd(ctx, rec, i, exit) })
			if err == nil && exit.State == "" {
				return
			}
			if err == nil {
				pause = firstPause
				awaitRunning(ctx, rec, i)
				continue
			}
		}
		if ctx.Err() != nil || errors.Is(err, errClosed) {
			return // the next manager watches it again
		}
		is.log.WarnContext(ctx, "manager: end of sandbox not handled", slog.String("sandbox", string(rec.id)), slog.Any("error", err))
		if sleep(ctx, pause) != nil {
			return
		}
		pause = min(2*pause, lastPause)
	}
}

// awaitRunning waits until a sandbox that its provider has stopped runs again, or has another
// instance.
func awaitRunning(ctx context.Context, rec *sandboxRecord, i sandpit.Instance) {
	for sleep(ctx, firstPause) == nil && rec.currentInstance() == i && rec.state() != sandpit.StateRunning {
		// it stays stopped
	}
}

// pingGuest returns nil if the guest answers. Conflict: the sandbox does not run.
func (is *instances) pingGuest(ctx context.Context, rec *sandboxRecord) error {
	_, err := is.listProcesses(ctx, rec)
	return err
}

func (is *instances) listProcesses(ctx context.Context, rec *sandboxRecord) ([]sandpit.ProcessInfo, error) {
	i, err := is.ensureAttached(ctx, rec)
	if err != nil {
		return nil, err
	}
	return callProvider(ctx, is.core.loops, providerCall{what: "ask the guest", limit: min(guestLimit, is.o.CallTimeout)}, i.Guest().ListProcesses, nil)
}

// destroyInstance removes what a provider has of a sandbox. A sandbox that the provider does not
// know is not an error.
func (is *instances) destroyInstance(ctx context.Context, rec *sandboxRecord) error {
	i, err := is.locateInstance(ctx, rec)
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	_, err = callProvider(ctx, is.core.loops, is.core.newCallTo(rec.currentRow().Provider, "destroy sandbox "+string(rec.id)), withoutResult(i.Destroy), nil)
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	return err
}

// locateInstance finds the instance of a sandbox whose handle may not be recorded, because its
// creation was interrupted: then the provider's list has it. NotFound: no provider has it.
func (is *instances) locateInstance(ctx context.Context, rec *sandboxRecord) (sandpit.Instance, error) {
	if i := rec.currentInstance(); i != nil {
		return i, nil
	}
	if row := rec.currentRow(); len(row.Handle) > 0 {
		return is.attachHandle(ctx, rec, row.Handle)
	}
	list, err := is.listPlacements(ctx, rec.currentRow().Provider, rec.provider)
	if err != nil {
		return nil, err
	}
	for _, p := range list {
		if p.ID == rec.id && p.Spec.Labels[Label] == is.identity {
			return is.attachHandle(ctx, rec, p.Handle)
		}
	}
	return nil, newNotFoundError(rec.id)
}

func (is *instances) listPlacements(ctx context.Context, name string, p sandpit.Provider) ([]sandpit.Placement, error) {
	if p == nil {
		return nil, sandpit.Errorf(sandpit.Unavailable, "list sandboxes: the provider is not configured")
	}
	return callProvider(ctx, is.core.loops, is.core.newCallTo(name, "list sandboxes"), p.List, nil)
}
