// Package memory bounds the bytes that a server keeps in memory for its clients: bodies
// of requests, the output of commands, and answers that wait until they are read.
//
// A Budget divides them between owners. Code that needs memory takes the Account of its
// context (AccountOf), usually that of a request, and reserves bytes before it keeps them.
// Without an account there is no limit, so the command line can run the same code.
package memory

import (
	"context"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
)

// Options are how large a Budget is, in bytes.
type Options struct {
	// Total is for all owners, at least MinTotal. Required.
	Total int64
	// PerOwner is for one owner. Default: a quarter of Total.
	PerOwner int64
}

const (
	// MinTotal is the least a Budget may have, in bytes.
	MinTotal = 1 << 20
	// maxDefault is how much DefaultTotal returns at most, in bytes.
	maxDefault = 1 << 30
	// chunk is how much an account takes from its pool at a time, in bytes.
	chunk = 64 << 10
)

// DefaultTotal returns a budget for a process that may use so many bytes of memory: a
// quarter of them, up to 1 GiB.
func DefaultTotal(limit int64) int64 { return min(max(limit/4, MinTotal), maxDefault) }

// Budget is the memory of a server for its clients. All methods may be called
// concurrently.
type Budget struct {
	// Sessions outlive requests and have a pool of their own: otherwise an owner's sessions
	// would leave nothing for its requests.
	requests, sessions *fairshare.Pool
}

// NewBudget returns a budget of which nothing is used: three quarters are for requests,
// the rest for what outlives them. It panics if the options are out of bounds, which is a
// mistake of the program.
func NewBudget(o Options) *Budget {
	if o.PerOwner == 0 {
		o.PerOwner = max(o.Total/4, 1)
	}
	o.PerOwner = min(o.PerOwner, o.Total)
	pool := func(name, hint string, eighths int64) *fairshare.Pool {
		return fairshare.NewPool(fairshare.Options{
			Name: name, Total: o.Total / 8 * eighths, PerOwner: max(o.PerOwner/8*eighths, 1), Hint: hint,
		})
	}
	return &Budget{
		requests: pool("bytes of memory for requests", "read the pending responses, or request less at a time", 6),
		sessions: pool("bytes of memory for sessions", "close sessions, jobs and connections that are not needed", 2),
	}
}

// Shares returns how the memory is used.
func (b *Budget) Shares() []fairshare.Status {
	return []fairshare.Status{b.requests.Status(), b.sessions.Status()}
}

// OpenRequest returns an account of an owner for one request. The caller must Close it. A
// nil Budget returns nil, an account without limit.
func (b *Budget) OpenRequest(owner string) *Account {
	if b == nil {
		return nil
	}
	return &Account{pool: b.requests, owner: owner}
}

// OpenSession is OpenRequest for what outlives a request.
func (b *Budget) OpenSession(owner string) *Account {
	if b == nil {
		return nil
	}
	return &Account{pool: b.sessions, owner: owner}
}

// Used returns how many bytes an owner holds, and all owners together.
func (b *Budget) Used(owner string) (own, all int64) {
	own, all = b.requests.Used(owner)
	more, moreAll := b.sessions.Used(owner)
	return own + more, all + moreAll
}

// Account is what one request or session uses. All methods may be called concurrently; a
// nil Account has no limit.
type Account struct {
	pool  *fairshare.Pool
	owner string

	mu     sync.Mutex
	grant  *fairshare.Grant // nil until something is reserved
	used   int64
	closed bool
}

// Reserve takes bytes before they are kept.
//
// Exhausted: the owner, or all owners together, use too much. Canceled: the account is
// closed.
func (a *Account) Reserve(bytes int64) error {
	if a == nil || bytes <= 0 {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed {
		return sandpit.Errorf(sandpit.Canceled, "reserve memory: the request or session has ended")
	}
	units := int64(0)
	if a.grant != nil {
		units = a.grant.Units()
	}
	if missing := a.used + bytes - units; missing > 0 {
		rounded := (missing + chunk - 1) / chunk * chunk
		if a.growReservation(rounded) != nil {
			if err := a.growReservation(missing); err != nil {
				return err
			}
		}
	}
	a.used += bytes
	return nil
}

// growReservation takes bytes from the pool. The lock is held.
func (a *Account) growReservation(bytes int64) (err error) {
	if a.grant == nil {
		a.grant, err = a.pool.TryAcquire(a.owner, bytes)
		return err
	}
	return a.grant.Grow(bytes)
}

// Return gives back bytes that were reserved.
func (a *Account) Return(bytes int64) {
	if a == nil || bytes <= 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.grant == nil {
		return
	}
	a.used = max(a.used-bytes, 0)
	if spare := a.grant.Units() - a.used; spare >= 2*chunk {
		a.grant.Shrink(spare - chunk)
	}
}

// Used returns how many bytes are reserved.
func (a *Account) Used() int64 {
	if a == nil {
		return 0
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.used
}

// Close returns everything. From then on nothing can be reserved. It is idempotent.
func (a *Account) Close() {
	if a == nil {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed, a.used = true, 0
	if a.grant != nil {
		a.grant.Release()
	}
}

type accountKey struct{}

// WithAccount returns a context of what uses the account.
func WithAccount(ctx context.Context, a *Account) context.Context {
	return context.WithValue(ctx, accountKey{}, a)
}

// AccountOf returns the account of a context, or nil, which has no limit.
func AccountOf(ctx context.Context) *Account {
	a, _ := ctx.Value(accountKey{}).(*Account)
	return a
}
