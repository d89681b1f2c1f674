package network

import (
	"net/netip"
	"slices"
	"sync"
	"time"
)

// names remembers which addresses were answered for which names.
type names struct {
	mu    sync.Mutex
	known map[netip.Addr][]nameEntry
	count int
}

type nameEntry struct {
	name  string
	until time.Time
}

// How long answers count, in addition to what they say of themselves, and how long
// the sandbox is told that they do.
const (
	answerGrace = 5 * time.Minute
	maxTTL      = 5 * time.Minute
)

func newNames() *names { return &names{known: make(map[netip.Addr][]nameEntry)} }

// learnName remembers that name has the address for so long.
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

// dropLocked makes room: what is over goes, or else what is over first.
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

// namesOf returns the names of an address.
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
