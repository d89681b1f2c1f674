package manager

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/queue"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// move is a way from one lasting state to another.
type move struct {
	verb    string
	from    sandpit.State
	via, to sandpit.State
	// disk says that the memory goes to disk.
	disk bool
	// idle says that the reason is that the sandbox is idle: its next use resumes it.
	idle bool
	// do is what the provider does, nil if it cannot.
	do func(sandpit.Instance) func(context.Context) error
}

var (
	pausing    = move{"pause", sandpit.StateRunning, sandpit.StatePausing, sandpit.StatePaused, false, false, pause}
	resuming   = move{"resume", sandpit.StatePaused, sandpit.StateResuming, sandpit.StateRunning, false, false, resume}
	suspending = move{"pause", sandpit.StateRunning, sandpit.StatePausing, sandpit.StatePaused, true, false, suspend}
	// suspendingStill is of what is paused in memory.
	suspendingStill = move{"pause", sandpit.StatePaused, sandpit.StatePausing, sandpit.StatePaused, true, false, suspend}
	stopping        = move{"stop", sandpit.StateRunning, sandpit.StateStopping, sandpit.StateStopped, false, false, stop}
	stoppingStill   = move{"stop", sandpit.StatePaused, sandpit.StateStopping, sandpit.StateStopped, false, false, stop}
	starting        = move{"start", sandpit.StateStopped, sandpit.StateResuming, sandpit.StateRunning, false, false, start}
	archiving       = move{"archive", sandpit.StateStopped, sandpit.StateArchiving, sandpit.StateArchived, false, false, archive}
	restoring       = move{"restore", sandpit.StateArchived, sandpit.StateRestoring, sandpit.StateStopped, false, false, restore}
)

// Pause holds a sandbox still, its memory kept. Who uses it is told to stop.
//
// NotFound: no such sandbox. Gone: it was deleted. Conflict: it does not run.
// Unsupported: its provider cannot do that.
func (m *Manager) Pause(ctx context.Context, id sandpit.ID) error {
	return m.operate(ctx, id, "pause", nil, m.moving(pausing, ""))
}

// Suspend pauses a sandbox on disk, which gives its room back; one that is paused in
// memory may be suspended, too. Who uses it is told to stop. Errors as with Pause, and
// Exhausted: no room on disk.
func (m *Manager) Suspend(ctx context.Context, id sandpit.ID) error {
	return m.operate(ctx, id, "pause", onDisk(""), m.suspendingNow(""))
}

// onDisk are the arguments of an event that tells of pausing on disk.
func onDisk(reason string) map[string]string {
	args := map[string]string{"on": "disk"}
	if reason != "" {
		args["reason"] = reason
	}
	return args
}

// Resume lets a paused sandbox go on, wherever its memory is. Errors as with
// Pause, and Exhausted: there is no room for one more that runs.
func (m *Manager) Resume(ctx context.Context, id sandpit.ID) error {
	return m.operate(ctx, id, "resume", nil, m.moving(resuming, ""))
}

// Stop ends the processes of a running or paused sandbox, its files kept. Who
// uses it is told to stop. Errors as with Pause.
func (m *Manager) Stop(ctx context.Context, id sandpit.ID) error {
	return m.operate(ctx, id, "stop", nil, m.stoppingNow(""))
}

// Start starts a stopped sandbox. Errors as with Pause, and Exhausted: there is
// no room for one more that runs.
func (m *Manager) Start(ctx context.Context, id sandpit.ID) error {
	return m.operate(ctx, id, "start", nil, m.moving(starting, ""))
}

// Archive moves the files of a stopped sandbox to where they cost little. Errors
// as with Pause.
func (m *Manager) Archive(ctx context.Context, id sandpit.ID) error {
	return m.operate(ctx, id, "archive", nil, m.moving(archiving, ""))
}

// Restore moves the files of an archived sandbox back; it is stopped then. Errors
// as with Pause.
func (m *Manager) Restore(ctx context.Context, id sandpit.ID) error {
	return m.operate(ctx, id, "restore", nil, m.moving(restoring, ""))
}

func (m *Manager) moving(v move, reason string) step {
	return func(ctx context.Context, b *box) error { return m.move(ctx, b, v, reason) }
}

// suspendingNow suspends a sandbox that runs, or one that is paused in memory.
func (m *Manager) suspendingNow(reason string) step {
	return func(ctx context.Context, b *box) error {
		row := b.look()
		if row.State == sandpit.StatePaused && row.Suspended {
			return sandpit.Errorf(sandpit.Conflict, "sandbox %s is paused on disk already", b.id)
		}
		return m.move(ctx, b, suspendingFrom(row.State), reason)
	}
}

func suspendingFrom(s sandpit.State) move {
	if s == sandpit.StatePaused {
		return suspendingStill
	}
	return suspending
}

func stoppingFrom(s sandpit.State) move {
	if s == sandpit.StatePaused {
		return stoppingStill
	}
	return stopping
}

// stoppingNow stops a sandbox that runs, or one that is paused.
func (m *Manager) stoppingNow(reason string) step {
	return func(ctx context.Context, b *box) error {
		return m.move(ctx, b, stoppingFrom(b.state()), reason)
	}
}

// move takes a sandbox from one state to another. The reason stays with it, if
// there is one.
func (m *Manager) move(ctx context.Context, b *box, v move, reason string) error {
	row := b.look()
	if row.State != v.from {
		if err := stateError(row); err != nil {
			return err
		}
		if v.to == sandpit.StateArchived {
			return sandpit.WithHint(explained(row), "first: sandpit stop "+string(row.ID))
		}
		return explained(row)
	}
	i, err := m.attached(ctx, b)
	if err != nil {
		return err
	}
	do := v.do(i)
	if do == nil {
		return sandpit.Errorf(sandpit.Unsupported, "%s sandbox %s: its provider %q cannot do that", v.verb, b.id, row.Provider)
	}
	if takesRoom(v.via, false) {
		if err := m.room.take(row.Sandbox); err != nil {
			return err
		}
	}
	release, err := m.acquireMove(ctx, b, row, v)
	if err != nil {
		m.keepRoom(b)
		return fmt.Errorf("%s sandbox %s: %w", v.verb, b.id, err)
	}
	defer release()
	ctx, over, err := m.beginSaving(ctx, b, v, i)
	if err != nil {
		m.keepRoom(b)
		return fmt.Errorf("%s sandbox %s: %w", v.verb, b.id, err)
	}
	defer over()
	leaving := row
	leaving.State, leaving.Reason = v.via, reason
	b.refuse(stateError(leaving))
	if err := m.become(ctx, b, v.via, v.setOut(reason)); err != nil {
		m.keepRoom(b)
		m.countSaved(b.look())
		return err
	}
	if v.to == sandpit.StateStopped {
		m.ending(b, stateError(leaving))
	} else {
		b.evict(stateError(leaving), m.o.Drain)
	}
	return m.settle(ctx, b, v, m.perform(ctx, b, v, do))
}

// beginSaving reserves what a transition writes to the disk, if it does. The returned context
// is for it, and over is called when it is over.
func (m *Manager) beginSaving(ctx context.Context, b *box, v move, i sandpit.Instance) (saving context.Context, over func(), err error) {
	if !isSaved(v.to, v.disk) {
		return ctx, func() {}, nil
	}
	on, bytes := m.saves, int64(0)
	switch row := b.look(); {
	case v.to == sandpit.StateArchived:
		on = m.archives
	case row.State == sandpit.StateRunning || !row.Suspended:
		bytes = m.estimateSave(ctx, i, v.disk)
	}
	s, err := m.reserveSaving(ctx, savingPlan{id: string(b.id), owner: b.look().Lease.Owner, disk: on, bytes: bytes, stays: true})
	if err != nil {
		return ctx, nil, err
	}
	return s.within(ctx), s.release, nil
}

// perform asks the provider to do something. If that comes to an end only when
// nobody waits for it any more, the row follows.
func (m *Manager) perform(ctx context.Context, b *box, v move, do func(context.Context) error) error {
	_, err := call(ctx, m.loops, m.remoteFor(v, v.verb+" sandbox "+string(b.id)), none(do), func(_ struct{}, err error) {
		if err != nil {
			return // as was believed
		}
		ctx, cancel := m.ops.detach(m.ops.ctx)
		defer cancel()
		if err := m.run(ctx, b, m.logged(v.verb, map[string]string{"late": "true"}, m.following(v))); err != nil {
			m.o.Log.WarnContext(ctx, "a late answer cannot be written down", slog.String("sandbox", string(b.id)), slog.Any("error", err))
		}
	})
	return err
}

// following writes that a move was made after all, unless the sandbox was moved
// elsewhere meanwhile.
func (m *Manager) following(v move) step {
	return func(ctx context.Context, b *box) error {
		if b.state() != v.from {
			return errNothing
		}
		if takesRoom(v.to, v.disk) {
			m.room.hold(b.look().Sandbox)
		}
		if err := m.become(ctx, b, v.via, v.setOut("")); err != nil {
			return err
		}
		return m.arrive(ctx, b, v)
	}
}

// settle writes where a move has led to. Of one that failed nobody may know: then
// the guest is asked, which tells whether the sandbox runs.
func (m *Manager) settle(ctx context.Context, b *box, v move, err error) error {
	if err == nil || m.isThere(ctx, b, v, err) {
		return m.arrive(ctx, b, v)
	}
	origin := m.origin(ctx, b, v)
	back := m.become(ctx, b, origin, func(r *store.Row) {
		r.Reason = cut("could not "+v.verb+": "+err.Error(), store.MaxReason)
		if v.disk || origin == sandpit.StateRunning {
			r.Suspended = false
		}
		if origin != v.from {
			r.LastUsedAt = m.o.Clock.Now() // it has not been idle, but paused
		}
	})
	m.keepRoom(b)
	return errors.Join(err, back)
}

// origin returns the state that a failed move leaves a sandbox in. What is paused
// is resumed before it is stopped, and may have come no further.
func (m *Manager) origin(ctx context.Context, b *box, v move) sandpit.State {
	if v.from == sandpit.StatePaused && v.to == sandpit.StateStopped && m.ask(ctx, b) == nil {
		return sandpit.StateRunning
	}
	return v.from
}

// arrive writes that a move was made. A sandbox that runs again after its deadline has a
// new one, as far away as that was when it was set.
func (m *Manager) arrive(ctx context.Context, b *box, v move) error {
	before := b.look()
	reason := before.Reason
	if v.to == sandpit.StateRunning {
		if err := m.giveAgain(ctx, b); err != nil {
			return err
		}
	}
	if isSaved(v.to, v.disk) {
		m.finishSaving(string(b.id), before.Lease.Owner)
	}
	err := m.become(ctx, b, v.to, func(r *store.Row) {
		r.Reason, r.Suspended = reason, v.disk
		if v.to != sandpit.StateRunning {
			return
		}
		now := m.o.Clock.Now()
		r.Reason, r.LastUsedAt, r.Idled = "", now, false
		if !r.Lease.Deadline.After(now) {
			r.Lease = renewed(*r, now)
		}
	})
	if lease := b.look().Lease; err == nil && !lease.Deadline.Equal(before.Lease.Deadline) && !lease.Deadline.IsZero() {
		m.schedule(ctx, b, kindDeadline, lease.Deadline)
	}
	return err
}

// renewed is the lease of a sandbox whose deadline has passed and that goes on.
func renewed(r store.Row, now time.Time) sandpit.Lease {
	l := r.Lease
	l.Deadline = time.Time{}
	if r.Term > 0 {
		l.Deadline = queue.Millis(now.Add(r.Term))
	}
	return l
}

// isThere reports whether a move that failed has been made all the same: the
// answer was lost, or it had been made before.
func (m *Manager) isThere(ctx context.Context, b *box, v move, err error) bool {
	if refused(err) {
		return false
	}
	switch sandpit.CodeOf(err) {
	case sandpit.Exhausted, sandpit.NotFound, sandpit.Gone:
		return false
	case sandpit.Conflict:
		if v.to == sandpit.StateRunning || v.from == sandpit.StateRunning {
			return (v.to == sandpit.StateRunning) == (m.ask(ctx, b) == nil)
		}
		return true
	default:
		if v.to == sandpit.StateRunning {
			return m.ask(ctx, b) == nil
		}
		return v.from == sandpit.StateRunning && errors.Is(m.ask(ctx, b), sandpit.Conflict)
	}
}

// ask returns nil if the guest answers. It is Conflict if the sandbox does not
// run.
func (m *Manager) ask(ctx context.Context, b *box) error {
	_, err := m.processes(ctx, b)
	return err
}

func (m *Manager) processes(ctx context.Context, b *box) ([]sandpit.ProcessInfo, error) {
	i, err := m.attached(ctx, b)
	if err != nil {
		return nil, err
	}
	return call(ctx, m.loops, remote{what: "ask the guest", limit: min(guestLimit, m.o.CallTimeout)}, i.Guest().ListProcesses, nil)
}

// keepRoom frees what a sandbox takes up if its state takes none.
func (m *Manager) keepRoom(b *box) {
	if row := b.look(); !takesRoom(row.State, row.Suspended) {
		m.room.give(b.id)
	}
}

// setOut writes why a move is made, and where it leads if the state does not tell.
func (v move) setOut(reason string) func(*store.Row) {
	return func(r *store.Row) {
		withReason(reason)(r)
		r.Suspended = r.Suspended || v.disk
		if v.via != sandpit.StateResuming {
			r.Idled = v.idle
		}
	}
}

// remoteFor allows more time for what reads or writes all of a sandbox.
func (m *Manager) remoteFor(v move, what string) remote {
	r := m.remote(what)
	switch v.via {
	case sandpit.StateArchiving, sandpit.StateRestoring:
		r.limit = max(r.limit, m.o.MoveTimeout)
	case sandpit.StatePausing, sandpit.StateResuming:
		if v.disk || v.verb == resuming.verb {
			r.limit = max(r.limit, m.o.MoveTimeout)
		}
	default:
	}
	return r
}

// withReason gives a row a reason.
func withReason(reason string) func(*store.Row) {
	return func(r *store.Row) { r.Reason = cut(reason, store.MaxReason) }
}

// finishing finishes a move that was interrupted. Conflict from the provider
// means that it had been made.
func (m *Manager) finishing() step {
	return func(ctx context.Context, b *box) error {
		v, ok := interrupted(b.look())
		if !ok {
			return errNothing
		}
		i, err := m.attached(ctx, b)
		if err != nil {
			return err
		}
		do := v.do(i)
		if do == nil {
			return m.become(ctx, b, sandpit.StateError, withReason("its provider can no longer "+v.verb+" it"))
		}
		if p := m.slotsFor(b.look(), v); p != nil {
			slot, err := acquire(ctx, p, "") // what the server owes after a crash counts as its own
			if err != nil {
				return err
			}
			defer slot.Release()
		}
		_, err = call(ctx, m.loops, m.remoteFor(v, v.verb), none(do), nil)
		if err == nil || errors.Is(err, sandpit.Conflict) && m.isThere(ctx, b, v, err) {
			return m.arrive(ctx, b, v)
		}
		if refused(err) {
			return errors.Join(err, m.become(ctx, b, sandpit.StateError, withReason("could not "+v.verb+": "+err.Error())))
		}
		return err
	}
}

// refused reports whether an error says that nothing was done, and never will be.
func refused(err error) bool {
	switch sandpit.CodeOf(err) {
	case sandpit.Unsupported, sandpit.Invalid, sandpit.PermissionDenied, sandpit.Unauthenticated:
		return true
	default:
		return false
	}
}

// interrupted returns the move that a sandbox is on. Of one that is being paused the row
// says whether on disk.
func interrupted(r store.Row) (move, bool) {
	wakening := move{"wake", sandpit.StateStopped, sandpit.StateResuming, sandpit.StateRunning, false, false, wake}
	moves := []move{pausing, stoppingStill, wakening, archiving, restoring}
	if r.Suspended {
		moves[0] = suspending
	}
	k := slices.IndexFunc(moves, func(v move) bool { return v.via == r.State })
	if k < 0 {
		return move{}, false
	}
	return moves[k], true
}
