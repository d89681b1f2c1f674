package manager

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// renewals tell providers that end sandboxes on their own how long these are needed.
type renewals struct {
	core      *core
	log       *slog.Logger
	o         *Options
	sandboxes *recordIndex
}

// runLoop renews the expiry of running sandboxes, each every Options.RenewEvery.
func (rn *renewals) runLoop(ctx context.Context) {
	for sleep(ctx, min(rn.o.RenewEvery, time.Minute)) == nil {
		forEach(rn.o.Parallel, rn.sandboxes.all(), func(rec *sandboxRecord) {
			if !rec.needsRenewal(rn.o.RenewEvery) {
				return
			}
			err := rn.core.runIfUnlocked(ctx, rec, func(ctx context.Context, rec *sandboxRecord) error {
				rn.renewSandbox(ctx, rec)
				return nil
			})
			rn.core.logMismatch(ctx, rec.id, err)
		})
	}
}

// needsRenewal reports whether a sandbox runs whose expiry was not renewed for a time.
func (rec *sandboxRecord) needsRenewal(every time.Duration) bool {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.row.State != sandpit.StateRunning || rec.instance == nil || time.Since(rec.renewedAt) < every {
		return false
	}
	_, ok := as[sandpit.Renewer](rec.instance)
	return ok
}

// renewSandbox renews the expiry of a sandbox, if its provider has one. A failure is logged, and the
// next run of the loop tries again. The caller holds the lock.
func (rn *renewals) renewSandbox(ctx context.Context, rec *sandboxRecord) {
	row := rec.currentRow()
	r, ok := as[sandpit.Renewer](rec.currentInstance())
	if !ok {
		return
	}
	e := rn.o.newExpiry(row.Provider, row.Lease, row.Policy)
	renew := func(ctx context.Context) error { return renewAsPossible(ctx, r, e) }
	_, err := callProvider(ctx, rn.core.loops, rn.core.newCallTo(row.Provider, "renew sandbox "+string(rec.id)), withoutResult(renew), nil)
	if err != nil {
		rec.requestRenewal()
		rn.log.WarnContext(ctx, "manager: expiry of sandbox not renewed", slog.String("sandbox", string(rec.id)),
			slog.String("provider", row.Provider), slog.Any("error", err))
		return
	}
	rec.mu.Lock()
	defer rec.mu.Unlock()
	rec.renewedAt = time.Now()
}

// renewAsPossible renews an expiry as far as the provider can. A deadline that is later than it allows
// becomes its latest, and is renewed until the sandbox's own. An action that it cannot take on this
// sandbox is replaced: the server takes the right one, unless it has ended.
func renewAsPossible(ctx context.Context, r sandpit.Renewer, e sandpit.Expiry) error {
	others := slices.DeleteFunc([]sandpit.Action{sandpit.ActionSuspend, sandpit.ActionKill}, func(a sandpit.Action) bool { return a == e.Action })
	for {
		err := r.Renew(ctx, e)
		switch {
		case errors.Is(err, sandpit.ErrDeadlineTooLate) && !e.Deadline.IsZero():
			e.Deadline = time.Time{}
		case errors.Is(err, sandpit.Unsupported) && len(others) > 0:
			e.Action, others = others[0], others[1:]
		default:
			return err
		}
	}
}
