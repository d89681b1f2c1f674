package manager

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
)

// wall is the time of day, and what is owed to those who rely on it when it was
// set.
type wall struct {
	mu    sync.Mutex
	watch *clock.Watch
	store time.Duration // by how much rows must be moved still
	queue time.Duration // the same for messages

	// shifting is held for reading by who writes a row, so that no row is moved
	// between the store and memory.
	shifting sync.RWMutex
}

func newWall(c clock.Clock) *wall { return &wall{watch: clock.NewWatch(c)} }

// now returns the time of day to decide by: nothing relies on a time from before
// the clock was set.
func (m *Manager) now(ctx context.Context) (time.Time, error) {
	for {
		now := m.o.Clock.Now()
		jumped, err := m.settleClock(ctx)
		if err != nil {
			return time.Time{}, err
		}
		if !jumped {
			return now, nil
		}
	}
}

// settleClock moves all deadlines, messages and times of last use if the clock
// was set, so that a sandbox lives as long as was meant, and reports whether it
// was. While it fails nothing must be decided by the time of day.
func (m *Manager) settleClock(ctx context.Context) (bool, error) {
	w := m.wall
	w.mu.Lock()
	defer w.mu.Unlock()
	jump := w.watch.Jump()
	w.store += jump
	w.queue += jump
	if w.store == 0 && w.queue == 0 {
		return false, nil
	}
	by := w.store
	if err := m.shiftRows(ctx); err != nil {
		return false, err
	}
	if w.queue != 0 {
		if err := m.o.Queue.Shift(ctx, []string{m.identity}, w.queue); err != nil {
			return false, err
		}
		w.queue = 0
	}
	if by != 0 {
		m.o.Log.WarnContext(ctx, "the clock was set, and deadlines moved with it", slog.Duration("by", by))
		m.record(Report{Actor: actorManager, Action: "clock", Args: map[string]string{"by": by.String()}})
	}
	m.wake()
	m.wakeWorker()
	return true, nil
}

// clockLoop looks whether the clock was set, so that nothing is late for that.
func (m *Manager) clockLoop(ctx context.Context) {
	for sleep(ctx, time.Second) == nil {
		if _, err := m.settleClock(ctx); err != nil && ctx.Err() == nil {
			m.o.Log.WarnContext(ctx, "the clock was set, and deadlines cannot be moved", slog.Any("error", err))
		}
	}
}

// shiftRows moves the rows by what they are owed.
func (m *Manager) shiftRows(ctx context.Context) error {
	w := m.wall
	if w.store == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), storeLimit)
	defer cancel()
	w.shifting.Lock()
	defer w.shifting.Unlock()
	// What was used since the last time it was written must be written first: the
	// store moves what it has.
	if err := m.flushUsed(ctx); err != nil {
		return err
	}
	if err := m.o.Store.ShiftDeadlines(ctx, w.store); err != nil {
		return err
	}
	for _, b := range m.boxes.all() {
		b.shift(w.store)
	}
	w.store = 0
	return nil
}

// touches are the times of last use that are not written yet.
type touches struct {
	mu   sync.Mutex
	list map[sandpit.ID]time.Time
}

// touch notes that a sandbox is used.
func (m *Manager) touch(ctx context.Context, b *box) {
	now, err := m.now(ctx)
	if err != nil {
		now = m.o.Clock.Now() // what fails is told by who decides something
	}
	b.touch(now)
	m.used.mu.Lock()
	defer m.used.mu.Unlock()
	if m.used.list == nil {
		m.used.list = make(map[sandpit.ID]time.Time)
	}
	m.used.list[b.id] = now
}

// flushUsed writes the times of last use.
func (m *Manager) flushUsed(ctx context.Context) error {
	m.used.mu.Lock()
	list := m.used.list
	m.used.list = nil
	m.used.mu.Unlock()
	if len(list) == 0 {
		return nil
	}
	err := m.o.Store.TouchSandboxes(ctx, list)
	if err == nil {
		return nil
	}
	m.used.mu.Lock()
	defer m.used.mu.Unlock()
	if m.used.list == nil {
		m.used.list = make(map[sandpit.ID]time.Time, len(list))
	}
	for id, at := range list {
		if at.After(m.used.list[id]) {
			m.used.list[id] = at
		}
	}
	return err
}
