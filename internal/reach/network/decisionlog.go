package network

import (
	"container/list"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// decisionLog keeps the last decisions. Equal decisions are one entry with a count, which
// moves to the end each time, so that repeated attempts do not displace other entries.
type decisionLog struct {
	mu      sync.Mutex
	next    int64
	counts  map[bool]int64 // by Allowed
	entries *list.List     // of *sandpit.NetworkDecision, oldest first
	known   map[sandpit.NetworkDecision]*list.Element
}

// newDecisionLog returns an empty log. Its first number grows with time, so that a restarted
// gateway uses higher numbers.
func newDecisionLog(now time.Time) *decisionLog {
	return &decisionLog{next: now.UnixMicro(), counts: make(map[bool]int64), entries: list.New(), known: make(map[sandpit.NetworkDecision]*list.Element)}
}

// protocolGateway is the protocol of entries that are not decisions.
const protocolGateway = "gateway"

// addDecision adds a decision and sets its number, time and count.
func (l *decisionLog) addDecision(d sandpit.NetworkDecision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	d.Name, d.Reason = toPrintable(d.Name), toPrintable(d.Reason)
	key := d
	l.next++
	if d.Protocol != protocolGateway {
		l.counts[d.Allowed]++
	}
	if e := l.known[key]; e != nil {
		if old, ok := e.Value.(*sandpit.NetworkDecision); ok {
			d.Count = old.Count
		}
		l.entries.Remove(e)
	}
	d.Seq, d.At, d.Count = l.next, time.Now(), d.Count+1
	l.known[key] = l.entries.PushBack(&d)
	l.dropOldest()
}

// restoreDecisions adds decisions of an earlier log of the sandbox, in the order of their
// numbers.
func (l *decisionLog) restoreDecisions(old []sandpit.NetworkDecision) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, d := range old {
		d.Name, d.Reason = toPrintable(d.Name), toPrintable(d.Reason)
		key := d
		key.Seq, key.At, key.Count = 0, time.Time{}, 0
		if e := l.known[key]; e != nil {
			if known, ok := e.Value.(*sandpit.NetworkDecision); ok {
				known.Count += d.Count
			}
			continue
		}
		l.next = max(l.next, d.Seq)
		l.known[key] = l.insertDecision(&d)
	}
	l.dropOldest()
}

// insertDecision inserts an entry after the last one with a lower number.
func (l *decisionLog) insertDecision(d *sandpit.NetworkDecision) *list.Element {
	for e := l.entries.Back(); e != nil; e = e.Prev() {
		if other, ok := e.Value.(*sandpit.NetworkDecision); ok && other.Seq < d.Seq {
			return l.entries.InsertAfter(d, e)
		}
	}
	return l.entries.PushFront(d)
}

// dropOldest removes the oldest entries above the limit.
func (l *decisionLog) dropOldest() {
	for l.entries.Len() > maxDecisions {
		first := l.entries.Front()
		if old, ok := l.entries.Remove(first).(*sandpit.NetworkDecision); ok {
			gone := *old
			gone.Seq, gone.At, gone.Count = 0, time.Time{}, 0
			delete(l.known, gone)
		}
	}
}

// maxText bounds each text of a decision, in bytes.
const maxText = 253

// toPrintable converts a text of a sandbox so that it is harmless to display, and does not
// grow in JSON.
func toPrintable(text string) string {
	clean := []byte(text[:min(len(text), maxText)])
	for i, c := range clean {
		if c < ' ' || c > '~' || strings.IndexByte("\"\\<>&", c) >= 0 {
			clean[i] = '?'
		}
	}
	return string(clean)
}

// countDecisions returns the numbers of allowed and denied connections.
func (l *decisionLog) countDecisions() (allowed, denied int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.counts[true], l.counts[false]
}

// decisionsAfter returns up to limit decisions with higher numbers, oldest first.
func (l *decisionLog) decisionsAfter(seq int64, limit int) []sandpit.NetworkDecision {
	l.mu.Lock()
	defer l.mu.Unlock()
	var found []sandpit.NetworkDecision
	for e := l.entries.Front(); e != nil && len(found) < limit; e = e.Next() {
		if d, ok := e.Value.(*sandpit.NetworkDecision); ok && d.Seq > seq {
			found = append(found, *d)
		}
	}
	return found
}
