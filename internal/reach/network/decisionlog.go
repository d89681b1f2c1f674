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

// newJournal returns an empty log. Its first number grows with time, so that a restarted
// gateway uses higher numbers.
func newJournal(now time.Time) *decisionLog {
	return &decisionLog{next: now.UnixMicro(), counts: make(map[bool]int64), entries: list.New(), known: make(map[sandpit.NetworkDecision]*list.Element)}
}

// protocolGateway is the protocol of entries that are not decisions.
const protocolGateway = "gateway"

// addDecision adds a decision and sets its number, time and count.
func (j *decisionLog) addDecision(d sandpit.NetworkDecision) {
	j.mu.Lock()
	defer j.mu.Unlock()
	d.Name, d.Reason = toPrintable(d.Name), toPrintable(d.Reason)
	key := d
	j.next++
	if d.Protocol != protocolGateway {
		j.counts[d.Allowed]++
	}
	if e := j.known[key]; e != nil {
		if old, ok := e.Value.(*sandpit.NetworkDecision); ok {
			d.Count = old.Count
		}
		j.entries.Remove(e)
	}
	d.Seq, d.At, d.Count = j.next, time.Now(), d.Count+1
	j.known[key] = j.entries.PushBack(&d)
	j.dropOldest()
}

// restoreDecisions adds decisions of an earlier log of the sandbox, in the order of their
// numbers.
func (j *decisionLog) restoreDecisions(old []sandpit.NetworkDecision) {
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, d := range old {
		d.Name, d.Reason = toPrintable(d.Name), toPrintable(d.Reason)
		key := d
		key.Seq, key.At, key.Count = 0, time.Time{}, 0
		if e := j.known[key]; e != nil {
			if known, ok := e.Value.(*sandpit.NetworkDecision); ok {
				known.Count += d.Count
			}
			continue
		}
		j.next = max(j.next, d.Seq)
		j.known[key] = j.insertDecision(&d)
	}
	j.dropOldest()
}

// insertDecision inserts an entry after the last one with a lower number.
func (j *decisionLog) insertDecision(d *sandpit.NetworkDecision) *list.Element {
	for e := j.entries.Back(); e != nil; e = e.Prev() {
		if other, ok := e.Value.(*sandpit.NetworkDecision); ok && other.Seq < d.Seq {
			return j.entries.InsertAfter(d, e)
		}
	}
	return j.entries.PushFront(d)
}

// dropOldest removes the oldest entries above the limit.
func (j *decisionLog) dropOldest() {
	for j.entries.Len() > maxDecisions {
		first := j.entries.Front()
		if old, ok := j.entries.Remove(first).(*sandpit.NetworkDecision); ok {
			gone := *old
			gone.Seq, gone.At, gone.Count = 0, time.Time{}, 0
			delete(j.known, gone)
		}
	}
}

// maxWords bounds each text of a decision, in bytes.
const maxWords = 253

// toPrintable converts a text of a sandbox so that it is harmless to display, and does not
// grow in JSON.
func toPrintable(text string) string {
	clean := []byte(text[:min(len(text), maxWords)])
	for i, c := range clean {
		if c < ' ' || c > '~' || strings.IndexByte("\"\\<>&", c) >= 0 {
			clean[i] = '?'
		}
	}
	return string(clean)
}

// countDecisions returns the numbers of allowed and denied connections.
func (j *decisionLog) countDecisions() (allowed, denied int64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.counts[true], j.counts[false]
}

// decisionsAfter returns up to limit decisions with higher numbers, oldest first.
func (j *decisionLog) decisionsAfter(seq int64, limit int) []sandpit.NetworkDecision {
	j.mu.Lock()
	defer j.mu.Unlock()
	var found []sandpit.NetworkDecision
	for e := j.entries.Front(); e != nil && len(found) < limit; e = e.Next() {
		if d, ok := e.Value.(*sandpit.NetworkDecision); ok && d.Seq > seq {
			found = append(found, *d)
		}
	}
	return found
}
