package manager

import (
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
)

// sandboxQuota counts the sandboxes that use quota and enforces the limits of their number.
type sandboxQuota struct {
	max    int
	quotas Quotas
	// mustShare reports whether an owner has to leave room for other owners.
	mustShare func(owner string) bool

	// limits are those of single providers, and hours measures how long their sandboxes run.
	limits map[string]ProviderLimits
	hours  *providerHours

	mu     sync.Mutex
	claims map[sandpit.ID]quotaClaim
	owners map[string]int
	labels map[string]int // by "key=value"; only those with a quota
	counts map[string]int // by provider
	// replaced is how many claims count for their providers only.
	replaced int

	refused int64
}

// status returns how many sandboxes use quota.
func (l *sandboxQuota) status() fairshare.Status {
	l.mu.Lock()
	defer l.mu.Unlock()
	return fairshare.Status{Name: "sandboxes", Total: int64(l.max), Used: int64(l.total()), Refused: l.refused}
}

// quotaClaim is what one sandbox counts for.
type quotaClaim struct {
	owner, provider string
	labels          []string
	// replaced means that another attempt of the same request counts instead, except for the
	// provider: there the sandbox may still exist.
	replaced bool
}

// total returns how many sandboxes count for the server's limit. The lock is held.
func (l *sandboxQuota) total() int { return len(l.claims) - l.replaced }

func newSandboxQuota(o Options) *sandboxQuota {
	return &sandboxQuota{
		max: o.MaxSandboxes, quotas: o.Quotas, limits: o.ProviderLimits, hours: newProviderHours(o),
		claims: make(map[sandpit.ID]quotaClaim), owners: make(map[string]int), labels: make(map[string]int),
		counts: make(map[string]int),
	}
}

// reserve adds a sandbox, or fails with Exhausted. A sandbox that was added before stays. failed are
// earlier attempts of the same request, which it replaces.
func (l *sandboxQuota) reserve(s sandpit.Sandbox, failed []sandpit.ID) error {
	return l.countRefusal(l.runWithLimit(s.Lease.Owner, func(limit int) error {
		l.replaceClaims(failed)
		if _, has := l.claims[s.ID]; has {
			return nil
		}
		c := l.newClaim(s)
		if err := l.checkLimits(c, limit); err != nil {
			return err
		}
		l.addClaim(s.ID, c)
		return nil
	}))
}

// runWithLimit calls do, with the lock held, with the number of sandboxes that an owner may have:
// its quota, or half of all while other owners need room, or all. Whether others need room takes a
// query, which is made only if it matters.
func (l *sandboxQuota) runWithLimit(owner string, do func(limit int) error) error {
	locked := func(limit int) error {
		l.mu.Lock()
		defer l.mu.Unlock()
		return do(limit)
	}
	switch limit, named := l.quotas.Owners[owner]; {
	case named:
		return locked(limit)
	case l.quotas.Owner > 0:
		return locked(l.quotas.Owner)
	case !l.quotas.Share || owner == "":
		return locked(l.max)
	}
	err := locked(int(fairshare.Half(int64(l.max))))
	if err != nil && !l.mustShare(owner) {
		err = locked(l.max)
	}
	return err
}

// countRefusal counts an error of reserve or changeClaim.
func (l *sandboxQuota) countRefusal(err error) error {
	if err != nil {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.refused++
	}
	return err
}

// hasOtherOwners reports whether another owner has sandboxes.
func (l *sandboxQuota) hasOtherOwners(owner string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for other := range l.owners {
		if other != "" && other != owner {
			return true
		}
	}
	return false
}

// isFull reports whether the server's limit is reached without failed attempts of the same request.
func (l *sandboxQuota) isFull(failed []sandpit.ID) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := l.total()
	for _, id := range failed {
		if c, has := l.claims[id]; has && !c.replaced {
			n--
		}
	}
	return n >= l.max
}

// replaceClaims has failed attempts count for their providers only: what they may have left is being
// removed. The lock is held.
func (l *sandboxQuota) replaceClaims(failed []sandpit.ID) {
	for _, id := range failed {
		c, has := l.claims[id]
		if !has || c.replaced {
			continue
		}
		l.uncountOwner(c)
		c.replaced = true
		l.claims[id] = c
		l.replaced++
	}
}

// uncountOwner removes a claim from the counts of its owner and labels. The lock is held.
func (l *sandboxQuota) uncountOwner(c quotaClaim) {
	if l.owners[c.owner]--; l.owners[c.owner] == 0 {
		delete(l.owners, c.owner)
	}
	for _, label := range c.labels {
		l.labels[label]--
	}
}

// addExisting adds a sandbox that exists already, whatever the limits.
func (l *sandboxQuota) addExisting(s sandpit.Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropClaim(s.ID)
	l.addClaim(s.ID, l.newClaim(s))
}

// changeClaim counts a sandbox for its new labels and owner, or fails with Exhausted. failed are as in
// reserve.
func (l *sandboxQuota) changeClaim(s sandpit.Sandbox, failed []sandpit.ID) error {
	return l.countRefusal(l.runWithLimit(s.Lease.Owner, func(limit int) error {
		l.replaceClaims(failed)
		old, has := l.claims[s.ID]
		if !has {
			return nil
		}
		l.dropClaim(s.ID)
		c := l.newClaim(s)
		c.provider = old.provider
		if c.owner == old.owner {
			limit = max(limit, l.owners[c.owner]+1) // it is counted for its owner already
		}
		if err := l.checkLimits(c, limit); err != nil && !isProviderError(err) { // it runs there already
			l.addClaim(s.ID, old)
			return err
		}
		l.addClaim(s.ID, c)
		return nil
	}))
}

// revertChange undoes changeClaim.
func (l *sandboxQuota) revertChange(s sandpit.Sandbox) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, has := l.claims[s.ID]; has {
		l.dropClaim(s.ID)
		l.addClaim(s.ID, l.newClaim(s))
	}
}

// release removes a sandbox, if it was added.
func (l *sandboxQuota) release(id sandpit.ID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.dropClaim(id)
}

func (l *sandboxQuota) newClaim(s sandpit.Sandbox) quotaClaim {
	c := quotaClaim{owner: s.Lease.Owner, provider: s.Provider}
	for key, value := range s.Spec.Labels {
		if _, limited := l.quotas.Labels[key+"="+value]; limited {
			c.labels = append(c.labels, key+"="+value)
		}
	}
	return c
}

// checkLimits reports whether one more sandbox fits, given the limit of its owner. The lock is
// held.
func (l *sandboxQuota) checkLimits(c quotaClaim, limit int) error {
	const hint = "delete or stop sandboxes that are no longer needed, or raise the limit"
	if l.total() >= l.max {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "Maximum number of sandboxes (%d) reached", l.max), hint)
	}
	if n := l.owners[c.owner]; n >= limit {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "quota exceeded: owner %.100q has %d of %d sandboxes", c.owner, n, limit), hint)
	}
	for _, label := range c.labels {
		if n, most := l.labels[label], l.quotas.Labels[label]; n >= most {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "quota exceeded: %d of %d sandboxes have the label %.100q", n, most, label), hint)
		}
	}
	if n, most := l.counts[c.provider], l.limits[c.provider].MaxSandboxes; most > 0 && n >= most {
		return blameProvider(sandpit.WithHint(
			sandpit.Errorf(sandpit.Exhausted, "Maximum number of sandboxes (%d) of provider %s reached", most, c.provider), hint))
	}
	return blameProvider(l.hours.check(c.provider))
}

// countOf returns how many sandboxes of a provider use quota.
func (l *sandboxQuota) countOf(provider string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[provider]
}

func (l *sandboxQuota) addClaim(id sandpit.ID, c quotaClaim) {
	l.claims[id] = c
	l.owners[c.owner]++
	l.counts[c.provider]++
	l.hours.begin(id, c.provider)
	for _, label := range c.labels {
		l.labels[label]++
	}
}

func (l *sandboxQuota) dropClaim(id sandpit.ID) {
	c, has := l.claims[id]
	if !has {
		return
	}
	delete(l.claims, id)
	l.counts[c.provider]--
	l.hours.end(id)
	if c.replaced {
		l.replaced--
		return
	}
	l.uncountOwner(c)
}

// usesQuota reports whether a sandbox in this state counts. A paused sandbox counts unless it is
// suspended.
func usesQuota(s sandpit.State, suspended bool) bool {
	switch s {
	case sandpit.StatePaused:
		return !suspended
	case sandpit.StateStopped, sandpit.StateArchiving, sandpit.StateArchived, sandpit.StateRestoring, sandpit.StateDeleted:
		return false
	default:
		return true
	}
}
