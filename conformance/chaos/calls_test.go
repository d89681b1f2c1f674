package chaos_test

import (
	"fmt"
	"math/rand/v2"
	"slices"

	"github.com/sandpit-dev/sandpit"
)

// allowed says which refusals are no fault, by operation: other clients end
// sandboxes, and engines are killed, at any moment.
var allowed = map[string][]sandpit.Code{
	"create":     {sandpit.Exhausted, sandpit.Gone, sandpit.Unavailable, sandpit.Timeout, sandpit.Conflict},
	"run":        {sandpit.NotFound, sandpit.Gone, sandpit.Conflict, sandpit.Unavailable, sandpit.Timeout},
	"get":        {sandpit.NotFound},
	"deadline":   {sandpit.NotFound, sandpit.Gone},
	"labels":     {sandpit.NotFound, sandpit.Gone},
	"pause":      {sandpit.NotFound, sandpit.Gone, sandpit.Conflict},
	"suspend":    {sandpit.NotFound, sandpit.Gone, sandpit.Conflict},
	"resume":     {sandpit.NotFound, sandpit.Gone, sandpit.Conflict, sandpit.Exhausted},
	"stop":       {sandpit.NotFound, sandpit.Gone, sandpit.Conflict},
	"start":      {sandpit.NotFound, sandpit.Gone, sandpit.Conflict, sandpit.Exhausted},
	"archive":    {sandpit.NotFound, sandpit.Gone, sandpit.Conflict},
	"restore":    {sandpit.NotFound, sandpit.Gone, sandpit.Conflict},
	"checkpoint": {sandpit.NotFound, sandpit.Gone, sandpit.Conflict},
	"snapshot":   {sandpit.NotFound, sandpit.Gone, sandpit.Conflict},
	"fork":       {sandpit.NotFound, sandpit.Gone, sandpit.Conflict, sandpit.Exhausted},
	"rollback":   {sandpit.NotFound, sandpit.Gone, sandpit.Conflict},
	"export":     {sandpit.NotFound, sandpit.Conflict, sandpit.Unsupported}, // it shows the machine
	"unsave":     {sandpit.NotFound, sandpit.Conflict},
	"delete":     {sandpit.Unavailable, sandpit.Timeout},
}

// usual are the calls that clients make of sandboxes there are, by how often of 100 times.
var usual = []struct {
	op string
	of int
}{
	{"run", 38},
	{"get", 3},
	{"list", 4},
	{"placed", 3},
	{"labels", 4},
	{"pause", 4},
	{"resume", 12},
	{"suspend", 4},
	{"stop", 4},
	{"start", 6},
	{"archive", 3},
	{"restore", 4},
	{"checkpoint", 3},
	{"deadline", 3},
	{"delete", 5},
}

// mostSaved is how many snapshots there are at a time.
const mostSaved = 6

// choose returns a random call, one that ends a sandbox only as often as there are
// enough of them.
func (w *world) choose() call {
	w.mu.Lock()
	defer w.mu.Unlock()
	var ids []sandpit.ID
	for id := range w.acked {
		if !w.taken[id] {
			ids = append(ids, id)
		}
	}
	if len(w.unsure) > 0 { // the same request again: it must not make another one
		c := w.unsure[0]
		w.unsure = w.unsure[1:]
		return c
	}
	if len(ids) == 0 || len(ids) < 30 && rand.N(4) == 0 {
		c := call{Op: "create", Key: fmt.Sprintf("k%016x", rand.Uint64())}
		if w.image != "" && rand.N(3) == 0 { // one that can be exported
			c.Image = w.image
		}
		if rand.N(8) == 0 {
			c.Deadline = 50 + rand.N(3000)
		}
		return c
	}
	id := ids[rand.N(len(ids))]
	if rand.N(8) == 0 {
		return w.chooseSaved(id, len(ids) < 30)
	}
	c := call{Op: "run", ID: id, Key: w.acked[id], Command: "cat /workspace/key"}
	n := rand.N(100)
	for _, u := range usual {
		if n -= u.of; n < 0 {
			c.Op = u.op
			break
		}
	}
	switch c.Op {
	case "deadline":
		w.taken[id] = true
		c.Deadline = 50 + rand.N(2000)
	case "delete":
		w.taken[id] = true
	}
	return c
}

// saved is a snapshot that a client was told of.
type saved struct {
	of  sandpit.ID
	key string // in the sandbox's file
}

// chooseSaved returns a random call about snapshots and copies.
func (w *world) chooseSaved(id sandpit.ID, room bool) call {
	if room && rand.N(4) == 0 {
		return call{Op: "fork", ID: id}
	}
	for snap, s := range w.saved {
		switch {
		case len(w.saved) >= mostSaved:
			delete(w.saved, snap)
			return call{Op: "unsave", Snapshot: snap}
		case rand.N(3) == 0:
			return call{Op: "export", Snapshot: snap}
		case rand.N(2) == 0 && !w.taken[s.of]:
			return call{Op: "rollback", ID: s.of, Snapshot: snap}
		}
	}
	return call{Op: "snapshot", ID: id}
}

// compareSaved has each snapshot that a client was told of be there, with what was in it,
// and removes all there are.
func (w *world) compareSaved() {
	w.t.Helper()
	there := w.must(call{Op: "saved"}).Snapshots
	for snap, s := range w.saved {
		if !slices.Contains(there, snap) {
			w.t.Errorf("snapshot %s is lost", snap)
			continue
		}
		made := w.must(call{Op: "create", Snapshot: snap, Key: s.key})
		if got := w.must(call{Op: "run", ID: made.Sandbox.ID, Command: "cat /workspace/key"}).Output; got != s.key+"\n" {
			w.t.Errorf("snapshot %s has %q, want %q", snap, got, s.key)
		}
		w.must(call{Op: "delete", ID: made.Sandbox.ID})
	}
	for _, snap := range there {
		w.must(call{Op: "unsave", Snapshot: snap})
	}
	w.t.Logf("%d snapshots were made known, %d are there", len(w.saved), len(there))
}
