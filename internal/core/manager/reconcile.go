package manager

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

const (
	reasonCrash = "the server ended while it was made"
	reasonPool  = "the pool it waited in is no more"
)

// reconcileLoop compares again and again.
func (m *Manager) reconcileLoop(ctx context.Context) {
	for sleep(ctx, m.o.Reconcile) == nil {
		m.reconcile(ctx, false)
		m.tidy(ctx)
	}
}

// tidy makes what outlives sandboxes match the rows.
func (m *Manager) tidy(ctx context.Context) {
	m.tidyVolumes(ctx)
	m.tidySnapshots(ctx)
	m.tidyTemplates(ctx)
}

// reconcile makes the world match the rows. A provider that does not answer is
// left out: its silence means nothing. At the first time what was being deleted is
// tried at once; later that is the queue's business.
func (m *Manager) reconcile(ctx context.Context, first bool) {
	ctx, cancel := context.WithTimeout(ctx, 2*m.o.CallTimeout)
	defer cancel()
	var group sync.WaitGroup
	for name := range m.o.Providers {
		group.Go(func() {
			err := m.compare(ctx, name, first)
			m.reportProvider(ctx, name, err)
		})
	}
	group.Wait()
	m.republish(ctx)
}

// reportProvider tells once that a provider cannot be reached, and once that it
// can again.
func (m *Manager) reportProvider(ctx context.Context, name string, err error) {
	_, silent := m.shunned.Load(name)
	switch {
	case err != nil && !silent && !m.closing.Load():
		m.shunned.Store(name, true)
		m.o.Log.WarnContext(ctx, "a provider cannot be reached", slog.String("provider", name), slog.Any("error", err))
	case err == nil && silent:
		m.shunned.Delete(name)
		m.o.Log.InfoContext(ctx, "a provider can be reached again", slog.String("provider", name))
	default:
		return
	}
	m.record(Report{Actor: actorManager, Action: "reconcile", Args: map[string]string{"provider": name}, Err: err})
}

// compare looks at what one provider has.
func (m *Manager) compare(ctx context.Context, name string, first bool) error {
	p := m.o.Providers[name]
	type known struct {
		b       *box
		version int64
	}
	// What is written before the provider is asked must be in its answer.
	var before []known
	for _, b := range m.boxes.all() {
		if row := b.look(); row.Provider == name {
			before = append(before, known{b, row.Version})
		}
	}
	list, err := m.list(ctx, p)
	if err != nil {
		return err
	}
	listed := make(map[sandpit.ID]sandpit.Placement, len(list))
	for _, placement := range list {
		listed[placement.ID] = placement
	}
	each(m.o.Parallel, before, func(k known) {
		if ctx.Err() != nil {
			return // the next time
		}
		err := m.runIfFree(ctx, k.b, func(ctx context.Context, b *box) error {
			if b.look().Version != k.version {
				return errNothing
			}
			placement, isListed := listed[b.id]
			if isListed {
				m.noteSaved(b, placement)
			}
			err := m.match(ctx, b, isListed, first)
			if errors.Is(err, errNothing) && isListed && placement.CheckpointedAt.IsZero() {
				return m.forgetCheckpoint(ctx, b)
			}
			return err
		})
		m.complain(ctx, k.b.id, err)
	})
	each(m.o.Parallel, m.strangers(list), func(placement sandpit.Placement) {
		if ctx.Err() == nil {
			m.complain(ctx, placement.ID, m.removeStranger(ctx, p, placement))
		}
	})
	return nil
}

func (m *Manager) complain(ctx context.Context, id sandpit.ID, err error) {
	if err != nil {
		m.o.Log.WarnContext(ctx, "a sandbox is not as it should be", slog.String("sandbox", string(id)), slog.Any("error", err))
	}
}

// each calls f for all of a list, so many at the same time.
func each[T any](parallel int, list []T, f func(T)) {
	var group sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for _, one := range list {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			f(one)
		})
	}
	group.Wait()
}

// match makes one sandbox what its row says, or the other way round.
func (m *Manager) match(ctx context.Context, b *box, listed, first bool) error {
	row := b.look()
	if row.Pool != "" && row.State == sandpit.StateRunning && !m.inPool(row, b) {
		return m.logged("delete", map[string]string{"reason": reasonPool}, m.removing(reasonPool))(ctx, b)
	}
	switch row.State {
	case sandpit.StateDeleted, sandpit.StateError:
		return errNothing
	case sandpit.StateDeleting:
		if first {
			return m.deleteStep(ctx, b)
		}
		return errNothing
	case sandpit.StateCreating:
		if row.Recreated > 0 {
			return m.breakDown(ctx, b, reasonCrash+" again")
		}
		return m.logged("delete", map[string]string{"reason": reasonCrash}, m.removing(reasonCrash))(ctx, b)
	case sandpit.StateRunning, sandpit.StatePaused, sandpit.StateStopped, sandpit.StateArchived:
		return m.verify(ctx, b, listed)
	default:
		return m.finish(ctx, b)
	}
}

// finish finishes what was interrupted; a sandbox that is gone is lost.
func (m *Manager) finish(ctx context.Context, b *box) error {
	err := m.logged("finish", map[string]string{"state": string(b.state())}, m.finishing())(ctx, b)
	if errors.Is(err, sandpit.NotFound) || errors.Is(err, sandpit.Gone) {
		return m.lost(ctx, b, vanishedWith(err))
	}
	return err
}

// verify attaches to a sandbox that should be there. One that is not listed is
// lost only if it cannot be attached to either.
func (m *Manager) verify(ctx context.Context, b *box, listed bool) error {
	i := b.placed()
	if listed && i != nil {
		return errNothing
	}
	var err error
	if i == nil {
		_, err = m.attached(ctx, b)
	} else {
		_, err = m.attach(ctx, b, b.look().Handle)
	}
	if !errors.Is(err, sandpit.NotFound) && !errors.Is(err, sandpit.Gone) {
		return err
	}
	return m.lost(ctx, b, m.lastWords(ctx, i, err))
}

// vanishedWith is the reason for the end of a sandbox that a provider does not find.
func vanishedWith(err error) string {
	return cut("vanished: the provider has it no more: "+err.Error(), store.MaxReason)
}

// lastWords returns how an instance has ended, if it can tell, else how its provider does
// not find it.
func (m *Manager) lastWords(ctx context.Context, i sandpit.Instance, notFound error) string {
	if i == nil {
		return vanishedWith(notFound)
	}
	exit, err := call(ctx, m.loops, remote{what: "wait", limit: time.Second}, i.Wait, nil)
	if err != nil || exit.Reason == "" {
		return vanishedWith(notFound)
	}
	if !exit.Known {
		return "vanished: " + exit.Reason
	}
	return exit.Reason
}

// strangers are what is marked as ours and has no row.
func (m *Manager) strangers(list []sandpit.Placement) []sandpit.Placement {
	var strange []sandpit.Placement
	seen := make(map[sandpit.ID]bool)
	for _, p := range list {
		if p.ID.Validate() != nil || p.Spec.Labels[Label] != m.identity || seen[p.ID] {
			continue
		}
		seen[p.ID] = true
		if b, err := m.boxes.find(p.ID); err == nil && b.state() != sandpit.StateDeleted {
			continue
		}
		strange = append(strange, p)
	}
	return strange
}

// removeStranger destroys what is marked as ours and has no row. A provider that
// mixes handles up must not make us destroy something else.
func (m *Manager) removeStranger(ctx context.Context, p sandpit.Provider, placement sandpit.Placement) error {
	row, err := m.o.Store.Sandbox(ctx, placement.ID)
	if !errors.Is(err, sandpit.NotFound) && (err != nil || row.State != sandpit.StateDeleted) {
		return err // a row that cannot be read, or one that has come meanwhile
	}
	for _, b := range m.boxes.all() {
		if bytes.Equal(b.look().Handle, placement.Handle) {
			return sandpit.Errorf(sandpit.Internal, "the provider lists sandbox %s under another id", b.id)
		}
	}
	stranger := newBox(store.Row{Sandbox: sandpit.Sandbox{ID: placement.ID}}, p)
	i, err := m.attach(ctx, stranger, placement.Handle)
	if err == nil {
		_, err = call(ctx, m.loops, m.remote("destroy"), none(i.Destroy), nil)
	}
	if errors.Is(err, sandpit.NotFound) {
		return nil
	}
	m.record(Report{Actor: actorManager, Action: "destroy stranger", Sandbox: placement.ID, Err: err})
	return err
}

// errand is a message that must be in the queue.
type errand struct {
	sandbox sandpit.ID
	kind    queue.Kind
}

// ensure makes sure that the queue has what the rows ask for: a crash may have
// come between both, and what was given up must not be forgotten. At the first
// time a claim that is left is a dead server's, and nobody need wait for its end.
func (m *Manager) ensure(ctx context.Context, first bool) {
	pending, err := m.messages(ctx, false)
	var dead map[errand]queue.Message
	if err == nil {
		dead, err = m.messages(ctx, true)
	}
	if err != nil {
		if ctx.Err() == nil {
			m.o.Log.WarnContext(ctx, "the queue cannot be compared with the sandboxes", slog.Any("error", err))
		}
		return
	}
	now := m.o.Clock.Now()
	for _, b := range m.boxes.all() {
		kind, due, ok := wanted(b.look(), now)
		if !ok {
			continue
		}
		e := errand{b.id, kind}
		if first && !due.After(now) {
			if _, err := m.o.Queue.Cancel(ctx, b.id, kind); err == nil {
				delete(pending, e)
			}
		}
		if msg, there := pending[e]; there && (kind != kindDeadline || msg.Attempts > 0 || msg.Due.Equal(queue.Millis(due))) {
			continue
		}
		if msg, there := dead[e]; there && m.o.Queue.Revive(ctx, msg.ID, due) == nil {
			continue
		}
		m.schedule(ctx, b, kind, due)
	}
	m.wakeWorker()
}

// wanted returns the message that a row asks for.
func wanted(r store.Row, now time.Time) (queue.Kind, time.Time, bool) {
	switch {
	case r.State == sandpit.StateDeleting:
		return kindDelete, now, true
	case r.State == sandpit.StateError && r.Policy.Recreate > 0:
		return kindRecover, now, true
	case deadlineMatters(r):
		return kindDeadline, r.Lease.Deadline, true
	default:
		return "", time.Time{}, false
	}
}

// messages returns the manager's messages.
func (m *Manager) messages(ctx context.Context, dead bool) (map[errand]queue.Message, error) {
	all := make(map[errand]queue.Message)
	f := queue.Filter{Topic: m.identity, Dead: dead, Limit: queue.MaxList}
	for {
		page, err := m.o.Queue.List(ctx, f)
		if err != nil {
			return nil, err
		}
		for _, msg := range page {
			all[errand{msg.Sandbox, msg.Kind}] = msg
		}
		if len(page) < f.Limit {
			return all, nil
		}
		f.After = page[len(page)-1].ID
	}
}
