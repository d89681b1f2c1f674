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

// crowdLimits bound the connections of a listener.
type crowdLimits struct {
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

// gate is a listener whose connections are counted.
type gate struct {
	net.Listener

	crowd *crowd
}

// Accept implements net.Listener.
func (g *gate) Accept() (net.Conn, error) {
	for {
		c, err := g.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if m := g.crowd.enter(c); m != nil {
			return m, nil
		}
		_ = c.Close() // there is no room, and nobody to tell
	}
}

// crowd is the connections of a listener. A new one is nearly always let in: when there
// are too many, another one makes way. That is one that belongs to no owner, as long as
// these have more than their share, else one on which nothing is being done, else one of
// no owner, else one of the owner that has the most.
type crowd struct {
	limits crowdLimits

	mu        sync.Mutex
	heads     *fairshare.Pool // of heads that are longer than smallHead
	all       map[*member]struct{}
	idle      *list.List // of *member that belong to an owner or are exempt; idle for longest first
	unknown   int
	addresses map[string]*party
	owners    map[string]*party
}

// party is the connections from one address, or of one owner.
type party struct {
	members *list.List // of *member; the oldest first
	unknown *list.List // of those the ones of no owner, the first to make way first
}

// member is one connection.
type member struct {
	net.Conn

	crowd *crowd
	// What follows is guarded by crowd.mu.
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

func newCrowd(limits crowdLimits) *crowd {
	if limits.exempt == nil {
		limits.exempt = func(netip.Addr) bool { return false }
	}
	heads := fairshare.NewPool(fairshare.Options{
		Name: "long heads of requests", Total: int64(limits.largeHeads), PerOwner: int64(limits.largeHeadsPerAddress),
	})
	return &crowd{
		limits: limits, heads: heads, all: make(map[*member]struct{}), idle: list.New(),
		addresses: make(map[string]*party), owners: make(map[string]*party),
	}
}

// enter lets a connection in, or returns nil if there is no room.
func (c *crowd) enter(conn net.Conn) *member {
	m := &member{Conn: conn, crowd: c, inHead: true}
	var address netip.Addr
	if tcp, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		address = tcp.AddrPort().Addr().Unmap()
	}
	m.exempt = c.limits.exempt(address)
	c.mu.Lock()
	leaving, ok := c.makeRoom(m, address)
	if ok {
		c.add(m)
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
func (c *crowd) makeRoom(m *member, address netip.Addr) (leaving []*member, ok bool) {
	drop := func(victim *member) {
		c.drop(victim)
		leaving = append(leaving, victim)
	}
	if !m.exempt {
		m.address = addressName(address)
		if p := c.addresses[m.address]; p != nil && p.members.Len() >= c.limits.perAddress {
			drop(p.victim())
		}
	}
	if len(c.all) >= c.limits.total {
		victim := c.victim()
		if victim == nil {
			return leaving, false
		}
		drop(victim)
	}
	return leaving, true
}

// victim returns the connection that makes way for another one; nil if there is none. The
// lock is held.
func (c *crowd) victim() *member {
	if c.unknown > c.limits.unknown {
		return c.firstUnknown()
	}
	if first := c.idle.Front(); first != nil {
		return memberOf(first)
	}
	if c.unknown > 0 {
		return c.firstUnknown()
	}
	var most *party
	for _, p := range c.owners {
		if most == nil || p.members.Len() > most.members.Len() {
			most = p
		}
	}
	if most == nil {
		return nil
	}
	return memberOf(most.members.Back()) // what has been working for longest is worth most
}

// firstUnknown returns the connection of no owner that makes way first, from the address
// that has the most. There must be one. The lock is held.
func (c *crowd) firstUnknown() *member {
	var most *party
	for _, p := range c.addresses {
		if most == nil || p.unknown.Len() > most.unknown.Len() {
			most = p
		}
	}
	return memberOf(most.unknown.Front())
}

// victim returns the connection of an address that makes way for another one from there.
// The lock is held.
func (p *party) victim() *member {
	owners := make(map[string]int)
	for e := p.members.Front(); e != nil; e = e.Next() {
		m := memberOf(e)
		if m.idle != nil {
			return m
		}
		owners[m.owner]++
	}
	if first := p.unknown.Front(); first != nil {
		return memberOf(first)
	}
	victim := memberOf(p.members.Back())
	for e := p.members.Back(); e != nil; e = e.Prev() {
		if m := memberOf(e); owners[m.owner] > owners[victim.owner] {
			victim = m
		}
	}
	return victim
}

// memberOf returns what a list has in a place.
func memberOf(e *list.Element) *member {
	m, _ := e.Value.(*member) // the lists of this file have nothing else
	return m
}

// add counts a connection. The lock is held.
func (c *crowd) add(m *member) {
	c.all[m] = struct{}{}
	if m.exempt {
		m.idle = c.idle.PushBack(m)
		return
	}
	p := partyOf(c.addresses, m.address)
	m.ofAddress, m.ofUnknown = p.members.PushBack(m), p.unknown.PushBack(m)
	c.unknown++
}

func partyOf(parties map[string]*party, name string) *party {
	p := parties[name]
	if p == nil {
		p = &party{list.New(), list.New()}
		parties[name] = p
	}
	return p
}

// drop forgets a connection. It is idempotent. The lock is held.
func (c *crowd) drop(m *member) {
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
func (c *crowd) leaveUnknown(m *member) {
	if m.ofUnknown != nil {
		c.addresses[m.address].unknown.Remove(m.ofUnknown)
		m.ofUnknown = nil
		c.unknown--
	}
}

func (c *crowd) leaveOwner(m *member) {
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
func (c *crowd) setBusy(m *member) {
	if m.idle != nil {
		c.idle.Remove(m.idle)
		m.idle = nil
	}
}

// changed notes a new state of a connection.
func (c *crowd) changed(m *member, state http.ConnState) {
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
func (c *crowd) endHead(m *member) {
	if m.large != nil {
		m.large.Release()
	}
	m.inHead, m.head, m.large = false, 0, nil
}

// Read implements net.Conn. It fails when the head of a request becomes long while too
// many others are: the server holds a head in memory before it can ask for a key.
func (m *member) Read(p []byte) (int, error) {
	n, err := m.Conn.Read(p)
	if n > 0 {
		if refused := m.crowd.countHead(m, n); refused != nil {
			return 0, refused
		}
	}
	return n, err
}

// countHead counts bytes that were read.
//
// Exhausted: they make a head long, and there are too many long ones.
func (c *crowd) countHead(m *member, n int) error {
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

// memberBelow returns the member that a connection of the HTTP server is, or has below
// TLS; nil if there is none.
func memberBelow(conn net.Conn) *member {
	if t, ok := conn.(*tls.Conn); ok {
		conn = t.NetConn()
	}
	m, _ := conn.(*member)
	return m
}

// claim notes that a connection carries a request of an owner.
//
// Exhausted: the owner has too many others, and something is being done on all of them.
func (m *member) claim(owner string) error {
	if m == nil || m.exempt {
		return nil
	}
	idle, err := m.crowd.claim(m, owner)
	if idle != nil {
		_ = idle.Conn.Close() // its client notices
	}
	return err
}

func (c *crowd) claim(m *member, owner string) (idle *member, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, in := c.all[m]; !in || m.owner == owner {
		return nil, nil
	}
	p := partyOf(c.owners, owner)
	if p.members.Len() >= c.limits.perOwner {
		if idle = p.idle(); idle == nil {
			return nil, sandpit.WithHint(
				sandpit.Errorf(sandpit.Exhausted, "connection limit reached: owner %.100q has %d of %d connections", owner, p.members.Len(), c.limits.perOwner),
				"close connections that are not needed, or use one for several requests")
		}
		c.drop(idle)
		p = partyOf(c.owners, owner) // it may have been the last one
	}
	c.leaveUnknown(m)
	c.leaveOwner(m)
	m.owner, m.ofOwner = owner, p.members.PushBack(m)
	return idle, nil
}

// refuse notes that a request on a connection of no owner was refused. It makes way before
// those whose first request is still to come.
func (m *member) refuse() {
	if m == nil {
		return
	}
	m.crowd.mu.Lock()
	defer m.crowd.mu.Unlock()
	if m.ofUnknown != nil {
		m.crowd.addresses[m.address].unknown.MoveToFront(m.ofUnknown)
	}
}

// idle returns the oldest connection on which nothing is being done; nil if there is none.
// The lock is held.
func (p *party) idle() *member {
	for e := p.members.Front(); e != nil; e = e.Next() {
		if m := memberOf(e); m.idle != nil {
			return m
		}
	}
	return nil
}

// Close implements net.Conn.
func (m *member) Close() error {
	m.crowd.mu.Lock()
	m.crowd.drop(m)
	m.crowd.mu.Unlock()
	return m.Conn.Close()
}

// CloseWrite ends one direction, as who copies between connections needs it.
func (m *member) CloseWrite() error {
	if c, ok := m.Conn.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return errors.ErrUnsupported
}

// closeAll closes all connections.
func (c *crowd) closeAll() {
	c.mu.Lock()
	all := make([]*member, 0, len(c.all))
	for m := range c.all {
		all = append(all, m)
	}
	c.mu.Unlock()
	for _, m := range all {
		_ = m.Close() // nothing is left to be said
	}
}

type memberKey struct{}

// withMember is http.Server.ConnContext.
func withMember(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, memberKey{}, memberBelow(conn))
}

// connectionOf returns the connection that a request came by; nil if it is not counted.
func connectionOf(ctx context.Context) *member {
	m, _ := ctx.Value(memberKey{}).(*member)
	return m
}
