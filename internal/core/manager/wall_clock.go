package manager

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// wallClock is the time of day. When it is set, it shifts all times that were read from it.
type wallClock struct {
	identity  string
	clock     clock.Clock
	store     *store.Store
	queue     queue.Queue
	log       *slog.Logger
	core      *core
	events    *Events
	messages  *Messages
	records   *recordStore
	sandboxes *recordIndex

	mu         sync.Mutex
	watch      *clock.Watch
	storeShift time.Duration // by how much rows must still be moved
	queueShift time.Duration // by how much messages must still be moved
}

// now returns the time of day for a decision, after all stored times have been adjusted to it.
func (w *wallClock) now(ctx context.Context) (time.Time, error) {
	for {
		now := w.clock.Now()
		jumped, err := w.adjustForJump(ctx)
		if err != nil {
			return time.Time{}, err
		}
		if !jumped {
			return now, nil
		}
	}
}

// adjustForJump shifts all deadlines, messages and times of last use if the clock was set, so that
// sandboxes live as long as intended, and reports whether it was set. While it fails, the time of
// day must not be used for decisions.
func (w *wallClock) adjustForJump(ctx context.Context) (bool, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	jump := w.watch.Jump()
	w.storeShift += jump
	w.queueShift += jump
	if w.storeShift == 0 && w.queueShift == 0 {
		return false, nil
	}
	by := w.storeShift
	if err := w.shiftRecords(ctx); err != nil {
		return false, err
	}
	if w.queueShift != 0 {
		if err := w.queue.Shift(ctx, []string{w.identity}, w.queueShift); err != nil {
			return false, err
		}
		w.queueShift = 0
	}
	if by != 0 {
		w.log.WarnContext(ctx, "the clock was set, and deadlines moved with it", slog.Duration("by", by))
		w.events.Record(Report{Actor: actorManager, Action: "clock", Args: map[string]string{"by": by.String()}})
	}
	w.core.triggerSweep()
	w.messages.wakeWorker()
	return true, nil
}

// watchForJumps checks once a second whether the clock was set.
func (w *wallClock) watchForJumps(ctx context.Context) {
	for sleep(ctx, time.Second) == nil {
		if _, err := w.adjustForJump(ctx); err != nil && ctx.Err() == nil {
			w.log.WarnContext(ctx, "the clock was set, and deadlines cannot be moved", slog.Any("error", err))
		}
	}
}

// shiftRecords shifts the rows by storeShift.
func (w *wallClock) shiftRecords(ctx context.Context) error {
	if w.storeShift == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	w.records.shifting.Lock()
	defer w.records.shifting.Unlock()
	// Unwritten times of last use must be written first, because the
	// store shifts what it has.
	if err := w.records.flushUses(ctx); err != nil {
		return err
	}
	if err := w.store.Sandboxes().ShiftDeadlines(ctx, w.storeShift); err != nil {
		return err
	}
	for _, rec := range w.sandboxes.all() {
		rec.shiftTimes(w.storeShift)
	}
	w.storeShift = 0
	return nil
}

// pendingUses are the times of last use that are not written yet.
type pendingUses struct {
	mu   sync.Mutex
	list map[sandpit.ID]time.Time
}

// noteUse records that a sandbox is used now.
func (w *wallClock) noteUse(ctx context.Context, rec *sandboxRecord) {
	now, err := w.now(ctx)
	if err != nil {
		now = w.clock.Now() // the error matters only for decisions
	}
	rec.noteUse(now)
	w.records.used.mu.Lock()
	defer w.records.used.mu.Unlock()
	if w.records.used.list == nil {
		w.records.used.list = make(map[sandpit.ID]time.Time)
	}
	w.records.used.list[rec.id] = now
}

// flushUses writes the times of last use.
func (rs *recordStore) flushUses(ctx context.Context) error {
	rs.used.mu.Lock()
	list := rs.used.list
	rs.used.list = nil
	rs.used.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	err := rs.store.Sandboxes().TouchSandboxes(ctx, list)
	if err == nil {
		return nil
	}
	rs.used.mu.Lock()
	defer rs.used.mu.Unlock()
	if rs.used.list == nil {
		rs.used.list = make(map[sandpit.ID]time.Time, len(list))
	}
	for id, at := range list {
		if at.After(rs.used.list[id]) {
			rs.used.list[id] = at
		}
	}
	return err
}
