package toolbox

import (
	"context"
	"errors"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
	"github.com/sandpit-dev/sandpit/internal/reach/shell"
)

// maxSessions is how many sessions a sandbox may have, and maxTerminals how many terminals.
const (
	maxSessions  = 64
	maxTerminals = 32
)

// registry has the programs of all sandboxes that clients have started for longer than one
// request.
type registry struct {
	manager *manager.Manager
	resumes *resumes
	memory  *memory.Budget

	closing sync.WaitGroup // of programs that are being closed

	mu     sync.Mutex
	closed bool
	sets   map[sandpit.ID]*programs
}

// programs are the sessions, terminals and interpreters of one sandbox, as long as its guest is
// the same. All methods may be called concurrently.
type programs struct {
	guest   sandpit.Guest
	starter sandpit.Guest // guest, whose programs are followed while the sandbox is paused
	shells  *shell.Sessions
	remote  *interpreter.Remote
	account *memory.Account // of recorded output
	open    func() *memory.Account
	ctx     context.Context //nolint:containedctx // of the programs, which outlive requests
	cancel  context.CancelCauseFunc
	group   sync.WaitGroup // of goroutines that follow programs
	servers languageServers

	mu        sync.Mutex
	closed    bool
	sessions  map[string]*session
	terminals map[string]*terminal
	contexts  map[string]*interpreterContext
}

// findPrograms returns the programs of the sandbox of a call.
//
// Unavailable: the server is shutting down.
func (all *registry) findPrograms(c *call) (*programs, error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	if all.closed {
		return nil, sandpit.Errorf(sandpit.Unavailable, "the server is shutting down")
	}
	set := all.sets[c.id]
	if set != nil && set.guest == c.guest && set.ctx.Err() == nil {
		return set, nil
	}
	for id, other := range all.sets {
		if id == c.id || !all.isUsable(id) {
			delete(all.sets, id)
			other.cancel(sandpit.Errorf(sandpit.Gone, "sandbox %s was restarted", id))
			all.closing.Go(func() {
				_ = other.close() // its programs have ended with the sandbox or its previous guest
			})
		}
	}
	set = newPrograms(c, all)
	all.sets[c.id] = set
	return set, nil
}

// newPrograms returns an empty set for the sandbox of a call.
func newPrograms(c *call, all *registry) *programs {
	open := func() *memory.Account { return all.memory.OpenSession(c.about.Lease.Owner) }
	starter := resumedGuest{c.guest, func(ctx context.Context) error { return all.resumes.await(ctx, c.id) }}
	p := &programs{
		guest: c.guest, starter: starter, shells: shell.NewSessions(starter, shell.SetOptions{Max: maxSessions, IdleTimeout: -1, Memory: open}),
		remote: interpreter.NewRemote(c.guest, interpreter.RemoteOptions{}), account: open(), open: open,
		sessions: make(map[string]*session), terminals: make(map[string]*terminal), contexts: make(map[string]*interpreterContext),
	}
	p.ctx, p.cancel = context.WithCancelCause(context.Background())
	return p
}

// endPrograms ends the programs of a sandbox in which nothing runs any more.
func (all *registry) endPrograms(id sandpit.ID, why error) {
	all.mu.Lock()
	defer all.mu.Unlock()
	set := all.sets[id]
	if set == nil {
		return
	}
	delete(all.sets, id)
	why = sandpit.Errorf(sandpit.Gone, "%w", why)
	set.cancel(why)
	set.shells.Ended(why)
	all.closing.Go(func() {
		_ = set.close() // its programs have ended with the sandbox
	})
}

// isUsable reports whether a sandbox still exists.
func (all *registry) isUsable(id sandpit.ID) bool {
	s, err := all.manager.Get(id)
	return err == nil && s.State != sandpit.StateDeleted && s.State != sandpit.StateDeleting
}

// closeAll ends all programs. It is idempotent.
func (all *registry) closeAll() error {
	all.mu.Lock()
	all.closed = true
	sets := all.sets
	all.sets = nil
	all.mu.Unlock()
	var errs []error
	for _, set := range sets {
		set.cancel(sandpit.Errorf(sandpit.Unavailable, "the server is shutting down"))
		errs = append(errs, set.close())
	}
	all.closing.Wait()
	return errors.Join(errs...)
}

// close ends the programs and waits for their end. Canceling its context ends the waiting
// commands and the terminals.
func (p *programs) close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel(sandpit.Errorf(sandpit.Gone, "the programs of the sandbox are closed"))
	err := p.shells.Close()
	if sandpit.CodeOf(err) == sandpit.Conflict {
		err = nil // the sandbox is paused: its programs cannot be reached
	}
	err = errors.Join(err, p.remote.Close())
	p.group.Wait()
	p.account.Close()
	return err
}

// follow runs f in a goroutine that close waits for. It reports false if the set is closed.
func (p *programs) follow(f func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.followLocked(f)
}

// followLocked is follow for a caller that holds the lock.
func (p *programs) followLocked(f func()) bool {
	if p.closed {
		return false
	}
	p.group.Go(f)
	return true
}

// endError returns why the programs have ended.
func (p *programs) endError() error {
	if err := context.Cause(p.ctx); err != nil {
		return err
	}
	return sandpit.Errorf(sandpit.Gone, "the programs of the sandbox are closed")
}

// isClosed reports whether a channel is closed. Nothing is sent on it.
func isClosed(ended <-chan struct{}) bool {
	select {
	case <-ended:
		return true
	default:
		return false
	}
}
