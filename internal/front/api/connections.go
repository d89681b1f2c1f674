package api

import (
	"container/list"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"sync"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/fairshare"
)

// smallHead is how many bytes of the head of a request every connection may send. Longer
// heads are limited in number.
const smallHead = 16 << 10

// connectionLimits bound the connections of a listener.
type connectionLimits struct {
	// total is how many there may be. unknown is how many of them may belong to no owner
	// when there are no more left, because nothing has shown yet who uses them.
	total, unknown int
	// perAddress and perOwner are how many may come from one address and belong to one
	// owner.
	perAddress, perOwner int
	// largeHeads is how many connections may at a time send a request whose head is longer
	// than smallHead, and largeHeadsPerAddress how many of one address.
	largeHeads, largeHeadsPerAddress int
	// exempt reports whether connections from an address carry the requests of many
	// clients, so that only total bounds them. An invalid address is a unix socket.
	exempt func(netip.Addr) bool
}

// limitedListener is a listener whose connections are counted.
type limitedListener struct {
	net.Listener

	connections *connections
}

// Accept implements net.Listener.
func (g *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if m := g.connections.add(c); m != nil {
			return m, nil
		}
		_ = c.Close() // there is no room, and nobody to tell
	}
}

// connections is the connections of a listener. A new one is nearly always let in: when there
// are too many, another one makes way. That is one that belongs to no owner, as long as
// these have more than their share, else one on which nothing is being done, else one of
// no owner, else one of the owner that has the most.
type connections struct {
	limits connectionLimits

	mu        sync.Mutex
	heads     *fairshare.Pool // of heads that are longer than smallHead
	all       map[*connection]struct{}
	idle      *list.List // of *member that belong to an owner or are exempt; idle for longest first
	unknown   int
	addresses map[string]*connectionGroup
	owners    map[string]*connectionGroup
}

// connectionGroup is the connections from one address, or of one owner.
type connectionGroup struct {
	members *list.List // of *member; the oldest first
	unknown *list.List // of those the ones of no owner, the first to make way first
}

// connection is one connection.
type connection struct {
	net.Conn

	set *connections
	// What follows is guarded by connections.mu.
	exempt  bool
	address string // "" if exempt
	// inHead is whether the bytes that are read now belong to the head of a request, of
	// which head have been read. A long one has a grant.
	inHead bool
	head   int
	large  *fairshare.Grant
	owner  string // "": nobody has shown a key yet
	idle   *list.Element
	// The places in the lists of the address and the owner.
	ofAddress, ofUnknown, ofOwner *list.Element
}

func newConnections(limits connectionLimits) *connections {
	if limits.exempt == nil {
		limits.exempt = func(netip.Addr) bool { return false }
	}
	heads := fairshare.NewPool(fairshare.Options{
		Name: "long heads of requests", Total: int64(limits.largeHeads), PerOwner: int64(limits.largeHeadsPerAddress),
	})
	return &connections{
		limits: limits, heads: heads, all: make(map[*connection]struct{}), idle: list.New(),
		addresses: make(map[string]*connectionGroup), owners: make(map[string]*connectionGroup),
	}
}

// add lets a connection in, or returns nil if there is no room.
func (c *connections) add(conn net.Conn) *connection {
	m := &connection{Conn: conn, set: c, inHead: true}
	var address netip.Addr
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		address = tcp.AddrPort().Addr().Unmap()
	}
	m.exempt = c.limits.exempt(address)
	c.mu.Lock()
	leaving, ok := c.makeRoom(m, address)
	if ok {
		c.insert(m)
	}
	c.mu.Unlock()
	for _, l := range leaving {
		_ = l.Conn.Close() // its client notices
	}
	if !ok {
		return nil
	}
	return m
}

// makeRoom forgets connections until there is room for another one, which the caller
// closes. The lock is held.
func (c *connections) makeRoom(m *connection, address netip.Addr) (leaving []*connection, ok bool) {
	drop := func(victim *connection) {
		c.remove(victim)
		leaving = append(leaving, victim)
	}
	if !m.exempt {
		m.address = addressName(address)
		if p := c.addresses[m.address]; p != nil && p.members.Len() >= c.limits.perAddress {
			drop(p.pickVictim())
		}
	}
	if len(c.all) >= c.limits.total {
		victim := c.pickVictim()
		if victim == nil {
			return leaving, false
		}
		drop(victim)
	}
	return leaving, true
}

// pickVictim returns the connection that makes way for another one; nil if there is none. The
// lock is held.
func (c *connections) pickVictim() *connection {
	if c.unknown > c.limits.unknown {
		return c.firstUnknown()
	}
	if first := c.idle.Front(); first != nil {
		return toConnection(first)
	}
	if c.unknown > 0 {
		return c.firstUnknown()
	}
	var most *connectionGroup
	for _, p := range c.owners {
		if most == nil || p.members.Len() > most.members.Len() {
			most = p
		}
	}
	if most == nil {
		return nil
	}
	return toConnection(most.members.Back()) // what has been working for longest is worth most
}

// firstUnknown returns the connection of no owner that makes way first, from the address
// that has the most. There must be one. The lock is held.
func (c *connections) firstUnknown() *connection {
	var most *connectionGroup
	for _, p := range c.addresses {
		if most == nil || p.unknown.Len() > most.unknown.Len() {
			most = p
		}
	}
	return toConnection(most.unknown.Front())
}

// pickVictim returns the connection of an address that makes way for another one from there.
// The lock is held.
func (p *connectionGroup) pickVictim() *connection {
	owners := make(map[string]int)
	for e := p.members.Front(); e != nil; e = e.Next() {
		m := toConnection(e)
		if m.idle != nil {
			return m
		}
		owners[m.owner]++
	}
	if first := p.unknown.Front(); first != nil {
		return toConnection(first)
	}
	victim := toConnection(p.members.Back())
	for e := p.members.Back(); e != nil; e = e.Prev() {
		if m := toConnection(e); owners[m.owner] > owners[victim.owner] {
			victim = m
		}
	}
	return victim
}

// toConnection returns what a list has in a place.
func toConnection(e *list.Element) *connection {
	m, _ := e.Value.(*connection) // the lists of this file have nothing else
	return m
}

// insert counts a connection. The lock is held.
func (c *connections) insert(m *connection) {
	c.all[m] = struct{}{}
	if m.exempt {
		m.idle = c.idle.PushBack(m)
		return
	}
	p := groupOf(c.addresses, m.address)
	m.ofAddress, m.ofUnknown = p.members.PushBack(m), p.unknown.PushBack(m)
	c.unknown++
}

func groupOf(parties map[string]*connectionGroup, name string) *connectionGroup {
	p := parties[name]
	if p == nil {
		p = &connectionGroup{list.New(), list.New()}
		parties[name] = p
	}
	return p
}

// remove forgets a connection. It is idempotent. The lock is held.
func (c *connections) remove(m *connection) {
	if _, in := c.all[m]; !in {
		return
	}
	delete(c.all, m)
	c.endHead(m)
	c.setBusy(m)
	c.leaveOwner(m)
	if m.exempt {
		return
	}
	c.leaveUnknown(m)
	p := c.addresses[m.address]
	if p.members.Remove(m.ofAddress); p.members.Len() == 0 {
		delete(c.addresses, m.address)
	}
}

// leaveUnknown notes that a connection belongs to an owner, or is gone. The lock is held.
func (c *connections) leaveUnknown(m *connection) {
	if m.ofUnknown != nil {
		c.addresses[m.address].unknown.Remove(m.ofUnknown)
		m.ofUnknown = nil
		c.unknown--
	}
}

func (c *connections) leaveOwner(m *connection) {
	if m.ofOwner == nil {
		return
	}
	p := c.owners[m.owner]
	if p.members.Remove(m.ofOwner); p.members.Len() == 0 {
		delete(c.owners, m.owner)
	}
	m.ofOwner, m.owner = nil, ""
}

// setBusy notes that something is being done. The lock is held.
func (c *connections) setBusy(m *connection) {
	if m.idle != nil {
		c.idle.Remove(m.idle)
		m.idle = nil
	}
}

// setState notes a new state of a connection.
func (c *connections) setState(m *connection, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, in := c.all[m]; !in {
		return
	}
	c.setBusy(m)
	c.endHead(m)
	m.inHead = state == http.StateIdle || state == http.StateNew
	if m.inHead && (m.exempt || m.owner != "") {
		m.idle = c.idle.PushBack(m)
	}
}

// endHead notes that the head of a request has been read, or will never be. The lock is
// held.
func (c *connections) endHead(m *connection) {
	if m.large != nil {
		m.large.Release()
	}
	m.inHead, m.head, m.large = false, 0, nil
}

// Read implements net.Conn. It fails when the head of a request becomes long while too
// many others are: the server holds a head in memory before it can ask for a key.
func (m *connection) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	if n > 0 {
		if refused := m.set.countHead(m, n); refused != nil {
			return 0, refused
		}
	}
	return n, err
}

// countHead counts bytes that were read.
//
// Exhausted: they make a head long, and there are too many long ones.
func (c *connections) countHead(m *connection, n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, in := c.all[m]; !in || !m.inHead || m.large != nil {
		return nil
	}
	if m.head += n; m.head <= smallHead {
		return nil
	}
	address := m.address
	if m.exempt {
		address = m.Conn.RemoteAddr().String() // other clients come from the same address
	}
	grant, err := c.heads.TryAcquire(address, 1)
	m.large = grant
	return err
}

// findConnection returns the member that a connection of the HTTP server is, or has below
// TLS; nil if there is none.
func findConnection(conn net.Conn) *connection {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	m, _ := conn.(*connection)
	return m
}

// assignOwner notes that a connection carries a request of an owner.
//
// Exhausted: the owner has too many others, and something is being done on all of them.
func (m *connection) assignOwner(owner string) error {
	if m == nil || m.exempt {
		return nil
	}
	idle, err := m.set.assignOwner(m, owner)
	if idle != nil {
		_ = idle.Conn.Close() // its client notices
	}
	return err
}

func (c *connections) assignOwner(m *connection, owner string) (idle *connection, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, in := c.all[m]; !in || m.owner == owner {
		return nil, nil
	}
	p := groupOf(c.owners, owner)
	if p.members.Len() >= c.limits.perOwner {
		if idle = p.oldestIdle(); idle == nil {
			return nil, sandpit.WithHint(
				sandpit.Errorf(sandpit.Exhausted, "connection limit reached: owner %.100q has %d of %d connections", owner, p.members.Len(), c.limits.perOwner),
				"close connections that are not needed, or use one for several requests")
		}
		c.remove(idle)
		p = groupOf(c.owners, owner) // it may have been the last one
	}
	c.leaveUnknown(m)
	c.leaveOwner(m)
	m.owner, m.ofOwner = owner, p.members.PushBack(m)
	return idle, nil
}

// markRefused notes that a request on a connection of no owner was refused. It makes way before
// those whose first request is still to come.
func (m *connection) markRefused() {
	if m == nil {
		return
	}
	m.set.mu.Lock()
	defer m.set.mu.Unlock()
	if m.ofUnknown != nil {
		m.set.addresses[m.address].unknown.MoveToFront(m.ofUnknown)
	}
}

// oldestIdle returns the oldest connection on which nothing is being done; nil if there is none.
// The lock is held.
func (p *connectionGroup) oldestIdle() *connection {
	for e := p.members.Front(); e != nil; e = e.Next() {
		if m := toConnection(e); m.idle != nil {
			return m
		}
	}
	return nil
}

// Close implements net.Conn.
func (m *connection) Close() error {
	m.set.mu.Lock()
	m.set.remove(m)
	m.set.mu.Unlock()
	return m.Conn.Close()
}

// CloseWrite ends one direction, as who copies between connections needs it.
func (m *connection) CloseWrite() error {
	if c, ok := m.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}

// closeAll closes all connections.
func (c *connections) closeAll() {
	c.mu.Lock()
	all := make([]*connection, 0, len(c.all))
	for m := range c.all {
		all = append(all, m)
	}
	c.mu.Unlock()
	for _, m := range all {
		_ = m.Close() // nothing is left to be said
	}
}

type connectionKey struct{}

// withConnection is http.Server.ConnContext.
func withConnection(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, connectionKey{}, findConnection(conn))
}

// connectionOf returns the connection that a request came by; nil if it is not counted.
func connectionOf(ctx context.Context) *connection {
	m, _ := ctx.Value(connectionKey{}).(*connection)
	return m
}
