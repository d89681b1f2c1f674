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
	sandboxes *index
}

// busyMeasurements is how often in a row processors must be busy: programs that compute
// use all they get.
const busyMeasurements = 3

// watched is a sandbox whose use is watched.
type watched struct {
	instance sandpit.Instance
	judge    *usage.Judge
	asked    atomic.Bool // somebody measures it, or waits for an answer that nobody expects any more
}

// runLoop measures the sandboxes that run.
func (us *UsageMeter) runLoop(ctx context.Context) {
	if us.o.Usage.Every == 0 {
		return
	}
	all := make(map[sandpit.ID]*watched)
	for sleep(ctx, us.o.Usage.Every) == nil {
		all = us.measureAll(ctx, all)
	}
}

// measureAll measures all sandboxes once, a few at the same time, and returns those that
// are to be measured again.
func (us *UsageMeter) measureAll(ctx context.Context, before map[sandpit.ID]*watched) map[sandpit.ID]*watched {
	all := make(map[sandpit.ID]*watched, len(before))
	var boxes []*box
	for _, b := range us.sandboxes.all() {
		i := b.placed()
		if row := b.look(); i == nil || row.State != sandpit.StateRunning || row.Pool != "" {
			continue
		}
		if _, ok := as[sandpit.Statser](i); !ok {
			continue
		}
		w := before[b.id]
		if w == nil || w.instance != i {
			w = &watched{instance: i, judge: usage.NewJudge(us.o.Usage.High, busyMeasurements)}
		}
		all[b.id] = w
		boxes = append(boxes, b)
	}
	each(us.o.Parallel, boxes, func(b *box) {
		if ctx.Err() == nil {
			us.judgeSandbox(ctx, b, all[b.id])
		}
	})
	return all
}

// judgeSandbox measures one sandbox and does what follows. One that does not answer is no reason
// to ask it again before it has.
func (us *UsageMeter) judgeSandbox(ctx context.Context, b *box, w *watched) {
	statser, _ := as[sandpit.Statser](w.instance)
	if !w.asked.CompareAndSwap(false, true) {
		return
	}
	measure := func(ctx context.Context) (sandpit.Stats, error) {
		defer w.asked.Store(false)
		return statser.Stats(ctx)
	}
	limit := us.core.newCall("measure sandbox " + string(b.id))
	stats, err := call(ctx, us.core.loops, limit, measure, nil)
	if err != nil { // what has ended, or is out of reach, is told elsewhere
		us.log.DebugContext(ctx, "a sandbox cannot be measured", slog.String("sandbox", string(b.id)), slog.Any("error", err))
		return
	}
	b.measured(w.instance, stats)
	for _, warning := range w.judge.Look(stats) {
		us.log.WarnContext(ctx, "a sandbox comes close to a limit", slog.String("sandbox", string(b.id)), slog.String("warning", warning.String()))
		us.events.Record(Report{Actor: actorManager, Action: "usage warning", Sandbox: b.id, Args: map[string]string{
			"kind": string(warning.Kind), "percent": strconv.Itoa(int(100 * warning.Share)),
		}})
	}
	if us.o.Usage.Kill == 0 {
		return
	}
	if warning, ok := w.judge.Sustained(us.o.Usage.Kill); ok {
		us.core.logMismatch(ctx, b.id, us.core.runIfUnlocked(ctx, b, us.newUsageStop(w.instance, warning)))
	}
}

// newUsageStop is the step that ends a sandbox that has used too much for too long.
func (us *UsageMeter) newUsageStop(i sandpit.Instance, w usage.Warning) step {
	return func(ctx context.Context, b *box) error {
		if b.placed() != i || b.state() != sandpit.StateRunning {
			return errNothing // what was measured is over
		}
		reason := fmt.Sprintf("used too much: %s at %.0f %% of the limit for %v", w.Kind, 100*w.Share, us.o.Usage.Kill.Round(time.Second))
		end := us.lifecycle.newStop(reason)
		if able(i, sandpit.ActionStop) != nil {
			end = us.remover.newRemoval(reason)
		}
		return us.core.withEvent("usage kill", map[string]string{"reason": reason}, end)(ctx, b)
	}
}

// Measurement is what a sandbox used when it was measured last.
type Measurement struct {
	ID              sandpit.ID
	Owner, Provider string
	Stats           sandpit.Stats
}

// measured keeps the last measurement of an instance.
func (b *box) measured(i sandpit.Instance, s sandpit.Stats) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.instance == i {
		b.stats = s
	}
}

// Latest returns what running sandboxes used when they were measured last: each
// Options.Usage.Every. Those that wait in pools are left out.
func (us *UsageMeter) Latest() []Measurement {
	var list []Measurement
	for _, b := range us.sandboxes.all() {
		b.mu.Lock()
		if b.row.State == sandpit.StateRunning && b.row.Pool == "" && !b.stats.At.IsZero() {
			list = append(list, Measurement{ID: b.id, Owner: b.row.Lease.Owner, Provider: b.row.Provider, Stats: b.stats})
		}
		b.mu.Unlock()
	}
	return list
}

// Measure says what a sandbox uses. It is no use of the sandbox, which may be idle
// all the while.
//
// NotFound: no such sandbox. Gone: it was deleted. Conflict: it neither runs nor is
// paused. Unsupported: its provider cannot tell. Unavailable: it cannot be reached.
func (us *UsageMeter) Measure(ctx context.Context, id sandpit.ID) (sandpit.Stats, error) {
	b, err := us.sandboxes.known(id)
	if err != nil {
		return sandpit.Stats{}, err
	}
	row := b.look()
	if row.State != sandpit.StateRunning && row.State != sandpit.StatePaused {
		return sandpit.Stats{}, stateError(row)
	}
	i := b.placed()
	if i == nil {
		return sandpit.Stats{}, sandpit.Errorf(sandpit.Unavailable, "sandbox %s is not reached yet", id)
	}
	s, ok := as[sandpit.Statser](i)
	if !ok {
		return sandpit.Stats{}, sandpit.Errorf(sandpit.Unsupported, "measure sandbox %s: its provider %q cannot do that", id, row.Provider)
	}
	stats, err := call(ctx, us.core.loops, us.core.newCall("measure sandbox "+string(id)), s.Stats, nil)
	if row := b.look(); err != nil && row.State != sandpit.StateRunning && row.State != sandpit.StatePaused {
		err = stateError(row) // what became of it meanwhile says more
	}
	return stats, err
}
