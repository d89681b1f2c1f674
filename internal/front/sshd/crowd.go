package sshd

import (
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

const (
	// failedLoginsOf is how many connections of an address may be about to log in that has
	// failed too often, and failedPause how long each further failure of it takes.
	failedLoginsOf = 2
	failedPause    = 500 * time.Millisecond
	// idleEnough is how long a connection has carried nothing before it may make way.
	idleEnough = 10 * time.Second
)

// crowd is the connections of a server: those about to log in, by address, and those that
// have, by owner. All methods may be called concurrently.
type crowd struct {
	maxLogins, maxLoginsOf     int
	maxConnections, maxOfOwner int
	failed                     *api.Attempts

	mu          sync.Mutex
	logins      []*visitor // the oldest first
	connections map[string][]*visitor
	count       int // of all connections
}

// visitor is one connection.
type visitor struct {
	from    netip.Addr
	address string // what from counts as
	owner   string // once it has logged in
	// cut ends it, for a reason.
	cut func(error)
	// idle returns how long it has carried nothing; nil while it logs in.
	idle func() time.Duration
}

// errMadeWay is why a connection about to log in ends that takes longer than others.
var errMadeWay = sandpit.Errorf(sandpit.Exhausted, "too many connections have not logged in yet")

// addVisitor counts a connection that is about to log in. When there are too many, the oldest
// of its address makes way, or of the address that has the most.
func (c *crowd) addVisitor(v *visitor) {
	v.address = api.AddressActor(v.from)
	most := c.maxLoginsOf
	if c.failed.Spent(v.from) {
		most = min(most, failedLoginsOf)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	counts := make(map[string]int)
	for _, other := range c.logins {
		counts[other.address]++
	}
	switch {
	case counts[v.address] >= most:
		c.expelOldest(v.address)
	case len(c.logins) >= c.maxLogins:
		largest := c.logins[0].address
		for address, n := range counts {
			if n > counts[largest] {
				largest = address
			}
		}
		c.expelOldest(largest)
	}
	c.logins = append(c.logins, v)
}

// expelOldest ends the oldest log-in of an address. The lock is held.
func (c *crowd) expelOldest(address string) {
	for i, v := range c.logins {
		if v.address == address {
			c.logins = slices.Delete(c.logins, i, i+1)
			v.cut(errMadeWay)
			return
		}
	}
}

// loggedIn notes that a connection is no longer about to log in. It is idempotent.
func (c *crowd) loggedIn(v *visitor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := slices.Index(c.logins, v); i >= 0 {
		c.logins = slices.Delete(c.logins, i, i+1)
	}
}

// admitOwner counts a connection as one of an owner. The caller calls leave when it has ended.
//
// Exhausted: there are too many, and none that carries nothing can make way.
func (c *crowd) admitOwner(v *visitor, owner string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	var idle *visitor
	switch {
	case len(c.connections[owner]) >= c.maxOfOwner:
		if idle = longestIdle(c.connections[owner]); idle == nil {
			return sandpit.WithHint(
				sandpit.Errorf(sandpit.Exhausted, "connection limit reached: owner %.100q has %d of %d SSH connections", owner, len(c.connections[owner]), c.maxOfOwner),
				"close some of them")
		}
	case c.count >= c.maxConnections:
		if idle = c.makesWayFor(owner); idle == nil {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Exhausted, "all %d SSH connections are in use", c.maxConnections), "try again later")
		}
	}
	if idle != nil {
		c.remove(idle)
		idle.cut(sandpit.Errorf(sandpit.Exhausted, "this idle connection was closed in favor of another one"))
	}
	v.owner = owner
	c.connections[owner] = append(c.connections[owner], v)
	c.count++
	return nil
}

// makesWayFor returns the connection that has been idle for longest of the owner that has
// the most, if that is more than an owner has that wants another one, or else of that owner
// itself. The lock is held.
func (c *crowd) makesWayFor(owner string) *visitor {
	var found *visitor
	most := len(c.connections[owner])
	for _, list := range c.connections {
		if len(list) <= most {
			continue
		}
		if idle := longestIdle(list); idle != nil {
			found, most = idle, len(list)
		}
	}
	if found == nil {
		found = longestIdle(c.connections[owner])
	}
	return found
}

// longestIdle returns the connection that has carried nothing for longest; nil if all have
// of late.
func longestIdle(list []*visitor) (found *visitor) {
	longest := idleEnough
	for _, v := range list {
		if v.idle == nil {
			continue
		}
		if d := v.idle(); d >= longest {
			found, longest = v, d
		}
	}
	return found
}

// setIdleTime notes how it is known whether a connection carries anything.
func (c *crowd) setIdleTime(v *visitor, idle func() time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	v.idle = idle
}

// removeVisitor notes that a connection has ended. It is idempotent.
func (c *crowd) removeVisitor(v *visitor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.remove(v)
}

func (c *crowd) remove(v *visitor) {
	list := c.connections[v.owner]
	i := slices.Index(list, v)
	if i < 0 {
		return
	}
	if list = slices.Delete(list, i, i+1); len(list) == 0 {
		delete(c.connections, v.owner)
	} else {
		c.connections[v.owner] = list
	}
	c.count--
}
