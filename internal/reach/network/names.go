package network

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

// names records which addresses the gateway returned for which names.
type names struct {
	mu    sync.Mutex
	known map[netip.Addr][]nameEntry
	count int
}

type nameEntry struct {
	name  string
	until time.Time
}

// How long responses count in addition to their TTL, and the bounds of the TTL that the
// sandbox gets.
const (
	answerGrace = 5 * time.Minute
	maxTTL      = 5 * time.Minute
)

func newNames() *names { return &names{known: make(map[netip.Addr][]nameEntry)} }

// learnName records that name has the address for ttl.
func (n *names) learnName(name string, addr netip.Addr, ttl time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	until := now.Add(min(ttl, maxTTL) + answerGrace)
	entries := n.known[addr]
	if i := slices.IndexFunc(entries, func(e nameEntry) bool { return e.name == name }); i >= 0 {
		entries[i].until = until
		return
	}
	if n.count >= maxAnswers {
		n.dropLocked(now)
		entries = n.known[addr]
	}
	n.known[addr] = append(entries, nameEntry{name, until})
	n.count++
}

// dropLocked frees space: it drops the expired entries, or else the one that expires first.
func (n *names) dropLocked(now time.Time) {
	var oldest netip.Addr
	var first time.Time
	for addr, entries := range n.known {
		kept := slices.DeleteFunc(entries, func(e nameEntry) bool { return e.until.Before(now) })
		n.count -= len(entries) - len(kept)
		if len(kept) == 0 {
			delete(n.known, addr)
			continue
		}
		n.known[addr] = kept
		if until := kept[0].until; first.IsZero() || until.Before(first) {
			oldest, first = addr, until
		}
	}
	if n.count >= maxAnswers {
		n.count -= len(n.known[oldest])
		delete(n.known, oldest)
	}
}

// namesOf returns the current names of an address.
func (n *names) namesOf(addr netip.Addr) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	now := time.Now()
	var found []string
	for _, e := range n.known[addr] {
		if now.Before(e.until) {
			found = append(found, e.name)
		}
	}
	return found
}
