// Package fairshare divides a limited resource of a server between the owners that use it,
// so that no owner can take all of it and none waits behind another owner's queue.
package fairshare

import (
	"context"
	"slices"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// Options describe a resource. All fields but Hint are required.
type Options struct {
	// Name is what error messages call the units, for example "sandbox creations".
	Name string
	// Total is how many units there are, at least 1.
	Total int64
	// PerOwner is how many of them one owner may hold, from 1 to Total.
	PerOwner int64
	// MaxWaiting is how many requests of one owner may wait at a time, 0 or more.
	// Further ones fail at once.
	MaxWaiting int
	// Hint says what to do when no units are left. Default: try again later.
	Hint string
}

// Half returns half of a total, rounded up: a share that always leaves another owner
// something, unless there is only one unit.
func Half(total int64) int64 { return (total + 1) / 2 }

// Pool is a resource that owners take units of. All methods may be called concurrently.
//
// Units that become free go to the owner that holds the fewest, and within an owner to
// the request that came first. A request for many units is not overtaken by smaller ones
// of owners that hold as many.
type Pool struct {
	o Options

	mu       sync.Mutex
	used     int64
	waiting  int64 // requests
	refused  int64 // requests
	sequence int64 // of the last request that had to wait
	accounts map[string]*account
}

// account is what one owner holds and waits for. It exists only as long as there is
// anything of it.
type account struct {
	held    int64
	waiting []*waiter
}

// waiter is a request that waits for its units.
type waiter struct {
	units    int64
	sequence int64
	granted  chan struct{}
}

// isGranted reports whether the units were granted. The lock of the pool is held.
func (w *waiter) isGranted() bool {
	select {
	case <-w.granted:
		return true
	default:
		return false
	}
}

// NewPool returns a pool of which nothing is used. It panics if the options are out of
// their bounds, which is a mistake of the program.
func NewPool(o Options) *Pool {
	if o.Name == "" || o.Total < 1 || o.PerOwner < 1 || o.PerOwner > o.Total || o.MaxWaiting < 0 {
		panic("share: pool " + o.Name + " has options out of bounds")
	}
	if o.Hint == "" {
		o.Hint = "try again later"
	}
	return &Pool{o: o, accounts: make(map[string]*account)}
}

// Acquire takes units for an owner, and waits for them as long as ctx allows. The caller
// releases the grant.
//
// Exhausted: more units than an owner may ever hold, or too many requests of the owner
// wait already. Otherwise the cause of the end of ctx.
func (p *Pool) Acquire(ctx context.Context, owner string, units int64) (*Grant, error) {
	w, err := p.enqueueRequest(owner, units, p.o.MaxWaiting)
	if err != nil {
		return nil, err
	}
	select {
	case <-w.granted:
		return &Grant{pool: p, owner: owner, units: units}, nil
	case <-ctx.Done():
		p.abandonRequest(owner, w)
		return nil, context.Cause(ctx)
	}
}

// TryAcquire is Acquire without waiting.
//
// Exhausted: the owner, or all owners together, hold too much.
func (p *Pool) TryAcquire(owner string, units int64) (*Grant, error) {
	if _, err := p.enqueueRequest(owner, units, 0); err != nil {
		return nil, err
	}
	return &Grant{pool: p, owner: owner, units: units}, nil
}

// enqueueRequest adds a request and grants it if it is its turn. If not, and maxWaiting requests
// of the owner wait already, it is removed again.
func (p *Pool) enqueueRequest(owner string, units int64, maxWaiting int) (*waiter, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.accounts[owner]
	if a == nil {
		a = &account{}
		p.accounts[owner] = a
	}
	p.sequence++
	w := &waiter{units: units, sequence: p.sequence, granted: make(chan struct{})}
	a.waiting = append(a.waiting, w)
	p.waiting++
	p.grantWaiting()
	if w.isGranted() || units <= p.o.PerOwner && len(a.waiting) <= maxWaiting {
		return w, nil
	}
	p.removeRequest(a, w)
	p.refused++
	err := p.exhaustedError(owner, a, units)
	p.dropIfEmpty(owner)
	return nil, err
}

// Status is how a pool is used by all owners together.
type Status struct {
	// Name is what the units are called.
	Name string
	// Total is how many units there are, and Used how many of them owners hold.
	Total, Used int64
	// Waiting is how many requests wait, and Refused how many were refused so far.
	Waiting, Refused int64
}

// Status returns how the pool is used.
func (p *Pool) Status() Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	return Status{Name: p.o.Name, Total: p.o.Total, Used: p.used, Waiting: p.waiting, Refused: p.refused}
}

// Used returns how many units an owner holds, and how many all owners hold together.
func (p *Pool) Used(owner string) (own, all int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if a := p.accounts[owner]; a != nil {
		own = a.held
	}
	return own, p.used
}

// removeRequest forgets a request, if it waits still. The lock is held.
func (p *Pool) removeRequest(a *account, w *waiter) {
	if i := slices.Index(a.waiting, w); i >= 0 {
		a.waiting = slices.Delete(a.waiting, i, i+1)
		p.waiting--
	}
}

// dropIfEmpty forgets an account of which nothing is left. The lock is held.
func (p *Pool) dropIfEmpty(owner string) {
	if a := p.accounts[owner]; a != nil && a.held == 0 && len(a.waiting) == 0 {
		delete(p.accounts, owner)
	}
}

// releaseUnits takes units back and grants waiting requests.
func (p *Pool) releaseUnits(owner string, units int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.accounts[owner]
	a.held -= units
	p.used -= units
	p.dropIfEmpty(owner)
	p.grantWaiting()
}

// abandonRequest removes a request that waits no longer, and returns its units if it was
// granted them at the same moment.
func (p *Pool) abandonRequest(owner string, w *waiter) {
	p.mu.Lock()
	defer p.mu.Unlock()
	a := p.accounts[owner]
	if w.isGranted() {
		a.held -= w.units
		p.used -= w.units
	}
	p.removeRequest(a, w)
	p.dropIfEmpty(owner)
	p.grantWaiting()
}

// grantWaiting grants the requests that fit now. The lock is held.
func (p *Pool) grantWaiting() {
	for {
		a := p.nextAccount()
		if a == nil || a.waiting[0].units > p.o.Total-p.used {
			return
		}
		w := a.waiting[0]
		a.waiting = a.waiting[1:]
		p.waiting--
		a.held += w.units
		p.used += w.units
		close(w.granted)
	}
}

// nextAccount returns the account whose first request is next, skipping owners at
// their limit; nil if no request can be granted. The lock is held.
func (p *Pool) nextAccount() *account {
	var next *account
	for _, a := range p.accounts {
		if len(a.waiting) == 0 || a.waiting[0].units > p.o.PerOwner-a.held {
			continue
		}
		if next == nil || a.held < next.held || a.held == next.held && a.waiting[0].sequence < next.waiting[0].sequence {
			next = a
		}
	}
	return next
}

// exhaustedError says why units cannot be had. The lock is held.
func (p *Pool) exhaustedError(owner string, a *account, units int64) error {
	err := sandpit.Errorf(sandpit.Exhausted, "all %d %s are in use", p.o.Total, p.o.Name)
	if len(a.waiting) > 0 || units > p.o.PerOwner-a.held {
		err = sandpit.Errorf(sandpit.Exhausted, "owner %.100q uses %d of its %d %s, %d requests wait, and %d more were asked for",
			owner, a.held, p.o.PerOwner, p.o.Name, len(a.waiting), units)
	}
	return sandpit.WithHint(err, p.o.Hint)
}

// Grant is units that an owner holds. Its methods may be called concurrently.
type Grant struct {
	pool  *Pool
	owner string

	mu       sync.Mutex
	units    int64
	released bool
}

// Grow takes more units, without waiting.
//
// Exhausted: the owner, or all owners together, hold too much; the grant stays as it is.
// Canceled: the grant was released.
func (g *Grant) Grow(units int64) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.released {
		return sandpit.Errorf(sandpit.Canceled, "grow a grant of %s: it was released", g.pool.o.Name)
	}
	if _, err := g.pool.TryAcquire(g.owner, units); err != nil {
		return err
	}
	g.units += units
	return nil
}

// Shrink gives units back that were taken; at most all of them.
func (g *Grant) Shrink(units int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	units = min(units, g.units)
	if g.released || units <= 0 {
		return
	}
	g.units -= units
	g.pool.releaseUnits(g.owner, units)
}

// Units returns how many units the grant has.
func (g *Grant) Units() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.units
}

// Release gives all units back. It is idempotent.
func (g *Grant) Release() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.released {
		return
	}
	g.released = true
	if g.units > 0 { // otherwise the pool may have forgotten the owner
		g.pool.releaseUnits(g.owner, g.units)
	}
	g.units = 0
}
