package manager

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/usage"
)

// UsageMeter measures what sandboxes use. All methods may be called concurrently.
type UsageMeter struct {
	core      *core
	events    *Events
	lifecycle *lifecycle
	log       *slog.Logger
	o         *Options
	remover   *remover
	sandboxes *recordIndex
}

// busyMeasurements is how many consecutive measurements must show busy processors: programs that
// compute use all processor time for a while.
const busyMeasurements = 3

// watchedSandbox is a sandbox whose use is measured.
type watchedSandbox struct {
	instance sandpit.Instance
	judge    *usage.Judge
	pending  atomic.Bool // a measurement has not returned yet
}

// runLoop measures running sandboxes every Usage.Every.
func (us *UsageMeter) runLoop(ctx context.Context) {
	if us.o.Usage.Every == 0 {
		return
	}
	all := make(map[sandpit.ID]*watchedSandbox)
	for sleep(ctx, us.o.Usage.Every) == nil {
		all = us.measureAll(ctx, all)
	}
}

// measureAll measures all sandboxes once, some at the same time, and returns those to measure
// again.
func (us *UsageMeter) measureAll(ctx context.Context, before map[sandpit.ID]*watchedSandbox) map[sandpit.ID]*watchedSandbox {
	all := make(map[sandpit.ID]*watchedSandbox, len(before))
	var boxes []*sandboxRecord
	for _, rec := range us.sandboxes.all() {
		i := rec.currentInstance()
		if row := rec.currentRow(); i == nil || row.State != sandpit.StateRunning || row.Pool != "" {
			continue
		}
		if _, ok := as[sandpit.Statser](i); !ok {
			continue
		}
		w := before[rec.id]
		if w == nil || w.instance != i {
			w = &watchedSandbox{instance: i, judge: usage.NewJudge(us.o.Usage.High, busyMeasurements)}
		}
		all[rec.id] = w
		boxes = append(boxes, rec)
	}
	forEach(us.o.Parallel, boxes, func(rec *sandboxRecord) {
		if ctx.Err() == nil {
			us.judgeSandbox(ctx, rec, all[rec.id])
		}
	})
	return all
}

// judgeSandbox measures one sandbox, warns about high use and ends it if that lasts. A sandbox that
// has not answered the last measurement is skipped.
func (us *UsageMeter) judgeSandbox(ctx context.Context, rec *sandboxRecord, w *watchedSandbox) {
	statser, _ := as[sandpit.Statser](w.instance)
	if !w.pending.CompareAndSwap(false, true) {
		return
	}
	measure := func(ctx context.Context) (sandpit.Stats, error) {
		defer w.pending.Store(false)
		return statser.Stats(ctx)
	}
	limit := us.core.newCallTo(rec.currentRow().Provider, "measure sandbox "+string(rec.id))
	stats, err := callProvider(ctx, us.core.loops, limit, measure, nil)
	if err != nil { // the end of a sandbox is reported elsewhere
		us.log.DebugContext(ctx, "manager: sandbox not measured", slog.String("sandbox", string(rec.id)), slog.Any("error", err))
		return
	}
	rec.setStats(w.instance, stats)
	for _, warning := range w.judge.Look(stats) {
		us.log.WarnContext(ctx, "manager: sandbox close to a limit", slog.String("sandbox", string(rec.id)), slog.String("warning", warning.String()))
		us.events.Record(Report{Actor: actorManager, Action: "usage warning", Sandbox: rec.id, Args: map[string]string{
			"kind": string(warning.Kind), "percent": strconv.Itoa(int(100 * warning.Share)),
		}})
	}
	if us.o.Usage.Kill == 0 {
		return
	}
	if warning, ok := w.judge.Sustained(us.o.Usage.Kill); ok {
		us.core.logMismatch(ctx, rec.id, us.core.runIfUnlocked(ctx, rec, us.newUsageStop(w.instance, warning)))
	}
}

// newUsageStop returns the operation that ends a sandbox that has used too much for too long.
func (us *UsageMeter) newUsageStop(i sandpit.Instance, w usage.Warning) operation {
	return func(ctx context.Context, rec *sandboxRecord) error {
		if rec.currentInstance() != i || rec.state() != sandpit.StateRunning {
			return errNothingToDo // the measured instance has ended
		}
		reason := fmt.Sprintf("used too much: %s at %.0f %% of the limit for %v", w.Kind, 100*w.Share, us.o.Usage.Kill.Round(time.Second))
		end := us.lifecycle.newStop(reason)
		if checkAbility(i, sandpit.ActionStop) != nil {
			end = us.remover.newRemoval(reason)
		}
		return us.core.withEvent("usage kill", map[string]string{"reason": reason}, end)(ctx, rec)
	}
}

// Measurement is the last measurement of a sandbox.
type Measurement struct {
	ID              sandpit.ID
	Owner, Provider string
	Stats           sandpit.Stats
}

// setStats sets the last measurement of an instance.
func (rec *sandboxRecord) setStats(i sandpit.Instance, s sandpit.Stats) {
	rec.mu.Lock()
	defer rec.mu.Unlock()
	if rec.instance == i {
		rec.stats = s
	}
}

// Latest returns the last measurements of running sandboxes, without spares; see
// Options.Usage.Every.
func (us *UsageMeter) Latest() []Measurement {
	var list []Measurement
	for _, rec := range us.sandboxes.all() {
		rec.mu.Lock()
		if rec.row.State == sandpit.StateRunning && rec.row.Pool == "" && !rec.stats.At.IsZero() {
			list = append(list, Measurement{ID: rec.id, Owner: rec.row.Lease.Owner, Provider: rec.row.Provider, Stats: rec.stats})
		}
		rec.mu.Unlock()
	}
	return list
}

// Measure returns what a sandbox uses now. It does not count as activity.
//
// NotFound: no such sandbox. Gone: it was deleted. Conflict: it is neither running nor paused.
// Unsupported: its provider cannot measure it. Unavailable: it cannot be reached.
func (us *UsageMeter) Measure(ctx context.Context, id sandpit.ID) (sandpit.Stats, error) {
	rec, err := us.sandboxes.findVisible(id)
	if err != nil {
		return sandpit.Stats{}, err
	}
	row := rec.currentRow()
	if row.State != sandpit.StateRunning && row.State != sandpit.StatePaused {
		return sandpit.Stats{}, stateError(row)
	}
	i := rec.currentInstance()
	if i == nil {
		return sandpit.Stats{}, sandpit.Errorf(sandpit.Unavailable, "sandbox %s is not attached yet", id)
	}
	s, ok := as[sandpit.Statser](i)
	if !ok {
		return sandpit.Stats{}, sandpit.Errorf(sandpit.Unsupported, "measure sandbox %s: its provider %q cannot do that", id, row.Provider)
	}
	stats, err := callProvider(ctx, us.core.loops, us.core.newCallTo(row.Provider, "measure sandbox "+string(id)), s.Stats, nil)
	if row := rec.currentRow(); err != nil && row.State != sandpit.StateRunning && row.State != sandpit.StatePaused {
		err = stateError(row) // its new state explains the error better
	}
	return stats, err
}
