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

// busyMeasurements is how often in a row processors must be busy: programs that compute
// use all they get.
const busyMeasurements = 3

// watched is a sandbox whose use is watched.
type watched struct {
	instance sandpit.Instance
	judge    *usage.Judge
	asked    atomic.Bool // somebody measures it, or waits for an answer that nobody expects any more
}

// usageLoop measures the sandboxes that run.
func (m *Manager) usageLoop(ctx context.Context) {
	if m.o.Usage.Every == 0 {
		return
	}
	all := make(map[sandpit.ID]*watched)
	for sleep(ctx, m.o.Usage.Every) == nil {
		all = m.measureAll(ctx, all)
	}
}

// measureAll measures all sandboxes once, a few at the same time, and returns those that
// are to be measured again.
func (m *Manager) measureAll(ctx context.Context, before map[sandpit.ID]*watched) map[sandpit.ID]*watched {
	all := make(map[sandpit.ID]*watched, len(before))
	var boxes []*box
	for _, b := range m.boxes.all() {
		i := b.placed()
		if row := b.look(); i == nil || row.State != sandpit.StateRunning || row.Pool != "" {
			continue
		}
		if _, ok := as[sandpit.Statser](i); !ok {
			continue
		}
		w := before[b.id]
		if w == nil || w.instance != i {
			w = &watched{instance: i, judge: usage.NewJudge(m.o.Usage.High, busyMeasurements)}
		}
		all[b.id] = w
		boxes = append(boxes, b)
	}
	each(m.o.Parallel, boxes, func(b *box) {
		if ctx.Err() == nil {
			m.judge(ctx, b, all[b.id])
		}
	})
	return all
}

// judge measures one sandbox and does what follows. One that does not answer is no reason
// to ask it again before it has.
func (m *Manager) judge(ctx context.Context, b *box, w *watched) {
	statser, _ := as[sandpit.Statser](w.instance)
	if !w.asked.CompareAndSwap(false, true) {
		return
	}
	measure := func(ctx context.Context) (sandpit.Stats, error) {
		defer w.asked.Store(false)
		return statser.Stats(ctx)
	}
	limit := m.remote("measure sandbox " + string(b.id))
	stats, err := call(ctx, m.loops, limit, measure, nil)
	if err != nil { // what has ended, or is out of reach, is told elsewhere
		m.o.Log.DebugContext(ctx, "a sandbox cannot be measured", slog.String("sandbox", string(b.id)), slog.Any("error", err))
		return
	}
	b.measured(w.instance, stats)
	for _, warning := range w.judge.Look(stats) {
		m.o.Log.WarnContext(ctx, "a sandbox comes close to a limit", slog.String("sandbox", string(b.id)), slog.String("warning", warning.String()))
		m.record(Report{Actor: actorManager, Action: "usage warning", Sandbox: b.id, Args: map[string]string{
			"kind": string(warning.Kind), "percent": strconv.Itoa(int(100 * warning.Share)),
		}})
	}
	if m.o.Usage.Kill == 0 {
		return
	}
	if warning, ok := w.judge.Sustained(m.o.Usage.Kill); ok {
		m.complain(ctx, b.id, m.runIfFree(ctx, b, m.endOver(w.instance, warning)))
	}
}

// endOver is the step that ends a sandbox that has used too much for too long.
func (m *Manager) endOver(i sandpit.Instance, w usage.Warning) step {
	return func(ctx context.Context, b *box) error {
		if b.placed() != i || b.state() != sandpit.StateRunning {
			return errNothing // what was measured is over
		}
		reason := fmt.Sprintf("used too much: %s at %.0f %% of the limit for %v", w.Kind, 100*w.Share, m.o.Usage.Kill.Round(time.Second))
		end := m.stoppingNow(reason)
		if able(i, sandpit.ActionStop) != nil {
			end = m.removing(reason)
		}
		return m.logged("usage kill", map[string]string{"reason": reason}, end)(ctx, b)
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

// Measurements returns what running sandboxes used when they were measured last: each
// Options.Usage.Every. Those that wait in pools are left out.
func (m *Manager) Measurements() []Measurement {
	var list []Measurement
	for _, b := range m.boxes.all() {
		b.mu.Lock()
		if b.row.State == sandpit.StateRunning && b.row.Pool == "" && !b.stats.At.IsZero() {
			list = append(list, Measurement{ID: b.id, Owner: b.row.Lease.Owner, Provider: b.row.Provider, Stats: b.stats})
		}
		b.mu.Unlock()
	}
	return list
}
