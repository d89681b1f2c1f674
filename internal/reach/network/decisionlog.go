package network

import (
	"container/list"
	"strings"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// decisionLog remembers the last decisions. Equal ones are one entry with a count,
// which moves to the end each time: a sandbox that tries one thing for ever pushes
// nothing else out.
type decisionLog struct {
	mu      sync.Mutex
	next    int64
	counts  map[bool]int64 // by whether it was allowed
	entries *list.List     // of *sandpit.NetworkDecision, oldest first
	known   map[sandpit.NetworkDecision]*list.Element
}

// newJournal numbers entries upwards from a number that grows with time, so that
// those of a gateway that was started again are higher.
func newJournal(now time.Time) *decisionLog {
	return &decisionLog{next: now.UnixMicro(), counts: make(map[bool]int64), entries: list.New(), known: make(map[sandpit.NetworkDecision]*list.Element)}
}

// protocolGateway is of entries that are no decisions.
const protocolGateway = "gateway"

// addDecision takes a decision without number, time and count.
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

// restoreDecisions takes decisions that another journal of the sandbox had, with their numbers, and
// puts them where these belong.
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

// insertDecision puts an entry behind the last one that has a lower number.
func (j *decisionLog) insertDecision(d *sandpit.NetworkDecision) *list.Element {
	for e := j.entries.Back(); e != nil; e = e.Prev() {
		if other, ok := e.Value.(*sandpit.NetworkDecision); ok && other.Seq < d.Seq {
			return j.entries.InsertAfter(d, e)
		}
	}
	return j.entries.PushFront(d)
}

// dropOldest removes the oldest entries of too many.
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

// toPrintable makes text of a sandbox harmless to read: to people, and as JSON, where
// everything unusual takes more room.
func toPrintable(text string) string {
	clean := []byte(text[:min(len(text), maxWords)])
	for i, c := range clean {
		if c < ' ' || c > '~' || strings.IndexByte("\"\\<>&", c) >= 0 {
			clean[i] = '?'
		}
	}
	return string(clean)
}

// countDecisions counts decisions.
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
