package sshd

import (
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

func newTestCrowd() *crowd {
	return &crowd{
		maxLogins: 6, maxLoginsOf: 3, maxConnections: 6, maxOfOwner: 4,
		failed: api.NewAttempts(0.001, 1), connections: make(map[string][]*visitor),
	}
}

// guest returns a connection from an address, and how it is known whether it was ended.
func guest(from string) (v *visitor, ended func() bool) {
	var cause error
	v = &visitor{from: netip.MustParseAddr(from), cut: func(err error) { cause = err }}
	return v, func() bool { return cause != nil }
}

func TestOldestLoginMakesWay(t *testing.T) {
	t.Parallel()
	c := newTestCrowd()
	victim, ended := guest("192.0.2.9")
	c.addVisitor(victim)
	var cut []func() bool
	for range 5 {
		v, ended := guest("192.0.2.1")
		cut = append(cut, ended)
		c.addVisitor(v)
	}
	if !cut[0]() || !cut[1]() || cut[2]() || cut[4]() {
		t.Error("of 5 connections of an address the first 2 do not make way")
	}
	for i := range 4 { // now all places are taken: the address with the most makes way
		v, _ := guest(fmt.Sprintf("198.51.100.%d", i))
		c.addVisitor(v)
	}
	if ended() {
		t.Error("the only connection of an address made way")
	}
	if !cut[2]() || !cut[3]() || cut[4]() {
		t.Error("the address with the most did not make way")
	}
	c.loggedIn(victim)
	c.loggedIn(victim)
	if len(c.logins) != 5 {
		t.Errorf("%d are about to log in", len(c.logins))
	}
}

func TestFailingAddressHasLessRoom(t *testing.T) {
	t.Parallel()
	c := newTestCrowd()
	c.failed.Fail(netip.MustParseAddr("192.0.2.1"))
	var cut []func() bool
	for range 3 {
		v, ended := guest("192.0.2.1")
		cut = append(cut, ended)
		c.addVisitor(v)
	}
	if !cut[0]() || cut[1]() || cut[2]() {
		t.Error("of an address that fails not 2 are left")
	}
}

func TestIdleConnectionMakesWay(t *testing.T) {
	t.Parallel()
	c := newTestCrowd()
	admit := func(owner string, idle time.Duration) (ended func() bool, err error) {
		v, ended := guest("192.0.2.1")
		if err = c.admitOwner(v, owner); err == nil {
			c.setIdleTime(v, func() time.Duration { return idle })
		}
		return ended, err
	}
	must := func(owner string, idle time.Duration) func() bool {
		t.Helper()
		ended, err := admit(owner, idle)
		if err != nil {
			t.Fatal(err)
		}
		return ended
	}
	short, long, busy := must("ann", time.Minute), must("ann", time.Hour), must("ann", 0)
	must("bob", time.Hour)
	must("bob", 0)
	must("eve", 0)
	must("bob", 0)
	if !long() || short() || busy() {
		t.Error("not the connection made way that was idle for longest, of the owner with the most")
	}
	// Now ann has 2, bob 3, eve 1.
	must("eve", 0) // in place of bob's
	if _, err := admit("bob", 0); sandpit.CodeOf(err) != sandpit.Exhausted {
		t.Errorf("an owner gets another one in place of one that has as many: %v", err)
	}
	must("ann", 0) // in place of its own
	if c.count > 6 {
		t.Errorf("%d connections", c.count)
	}
}

func TestOwnIdleConnectionMakesWay(t *testing.T) {
	t.Parallel()
	c := newTestCrowd()
	var first *visitor
	for i := range 4 {
		v, _ := guest("192.0.2.1")
		if err := c.admitOwner(v, "ann"); err != nil {
			t.Fatal(err)
		}
		idle := time.Duration(0)
		if i == 0 {
			first, idle = v, time.Hour
		}
		c.setIdleTime(v, func() time.Duration { return idle })
	}
	v, _ := guest("192.0.2.1")
	if err := c.admitOwner(v, "ann"); err != nil {
		t.Errorf("with an idle one of its own: %v", err)
	}
	if v, _ := guest("192.0.2.1"); sandpit.CodeOf(c.admitOwner(v, "ann")) != sandpit.Exhausted {
		t.Error("without one")
	}
	c.removeVisitor(first)
	c.removeVisitor(v)
	c.removeVisitor(v)
	if c.count != 3 || len(c.connections["ann"]) != 3 {
		t.Errorf("%d connections, %d of ann", c.count, len(c.connections["ann"]))
	}
}
