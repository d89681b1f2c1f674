package manager

import (
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// ledger counts the sandboxes that take up room.
type ledger struct {
	max    int
	quotas Quotas

	mu     sync.Mutex
	claims map[sandpit.ID]claim
	owners map[string]int
	labels map[string]int // by "key=value"; only those with a quota
}

// claim is what one sandbox counts for.
type claim struct {
	owner  string
	labels []string
}

func newLedger(limit int, q Quotas) *ledger {
	return &ledger{
		max: limit, quotas: q,
		claims: make(map[sandpit.ID]claim), owners: make(map[string]int), labels: make(map[string]int),
	}
}

// take makes room for a sandbox, or fails with Exhausted. One that has room keeps
// it.
func (l *ledger) take(s sandpit.Sandbox) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, has := l.claims[s.ID]; has {
		return nil
	}
	c := l.claimOf(s)
	if err := l.check(c); err != nil {
		return err
	}
	l.add(s.ID, c)
	return nil
}

// full reports whether there is no room for anybody.
func (l *ledger) full() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.claims) >= l.max
}

// hold makes room for a sandbox that is there already, whatever the limits.
func (l *ledger) hold(s sandpit.Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(s.ID)
	l.add(s.ID, l.claimOf(s))
}

// change counts a sandbox that has room for other labels, or fails with Exhausted.
func (l *ledger) change(s sandpit.Sandbox) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	old, has := l.claims[s.ID]
	if !has {
		return nil
	}
	l.drop(s.ID)
	c := l.claimOf(s)
	if err := l.check(c); err != nil {
		l.add(s.ID, old)
		return err
	}
	l.add(s.ID, c)
	return nil
}

// revert takes a change back.
func (l *ledger) revert(s sandpit.Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, has := l.claims[s.ID]; has {
		l.drop(s.ID)
		l.add(s.ID, l.claimOf(s))
	}
}

// give frees the room of a sandbox, if it has any.
func (l *ledger) give(id sandpit.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.drop(id)
}

func (l *ledger) claimOf(s sandpit.Sandbox) claim {
	c := claim{owner: s.Lease.Owner}
	for key, value := range s.Spec.Labels {
		if _, limited := l.quotas.Labels[key+"="+value]; limited {
			c.labels = append(c.labels, key+"="+value)
		}
	}
	return c
}

func (l *ledger) check(c claim) error {
	if len(l.claims) >= l.max {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Exhausted, "Maximum number of sandboxes (%d) reached", l.max),
			"delete or stop sandboxes that are no longer needed, or raise the limit")
	}
	limit, named := l.quotas.Owners[c.owner]
	if !named {
		limit = l.quotas.Owner
	}
	if (named || limit > 0) && l.owners[c.owner] >= limit {
		return sandpit.Errorf(sandpit.Exhausted, "owner %.100q may have %d sandboxes and has them", c.owner, limit)
	}
	for _, label := range c.labels {
		if limit := l.quotas.Labels[label]; l.labels[label] >= limit {
			return sandpit.Errorf(sandpit.Exhausted, "there may be %d sandboxes with the label %.100q, and there are", limit, label)
		}
	}
	return nil
}

func (l *ledger) add(id sandpit.ID, c claim) {
	l.claims[id] = c
	l.owners[c.owner]++
	for _, label := range c.labels {
		l.labels[label]++
	}
}

func (l *ledger) drop(id sandpit.ID) {
	c, has := l.claims[id]
	if !has {
		return
	}
	delete(l.claims, id)
	if l.owners[c.owner]--; l.owners[c.owner] == 0 {
		delete(l.owners, c.owner)
	}
	for _, label := range c.labels {
		l.labels[label]--
	}
}

// takesRoom reports whether a sandbox in this state counts. One that is paused counts
// unless its memory is on disk.
func takesRoom(s sandpit.State, suspended bool) bool {
	switch s {
	case sandpit.StatePaused:
		return !suspended
	case sandpit.StateStopped, sandpit.StateArchiving, sandpit.StateArchived, sandpit.StateRestoring, sandpit.StateDeleted:
		return false
	default:
		return true
	}
}
