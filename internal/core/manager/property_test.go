package manager_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/internal/testing/testoptions"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// model is what a walk expects of a manager.
type model struct {
	*rig

	outer  *testing.T
	boxes  map[sandpit.ID]sandpit.State // what each must be; deleted ones too
	stays  map[sandpit.ID][]*manager.Handle
	limit  int
	faults []func()
}

// verb is an operation and where it leads.
type verb struct {
	name string
	op   fake.Op
	from []sandpit.State
	to   sandpit.State
	do   func(*manager.Manager, context.Context, sandpit.ID) error
}

var verbs = []verb{
	{"pause", fake.OpPause, []sandpit.State{sandpit.StateRunning}, sandpit.StatePaused, (*manager.Manager).Pause},
	{"resume", fake.OpResume, []sandpit.State{sandpit.StatePaused}, sandpit.StateRunning, (*manager.Manager).Resume},
	{"stop", fake.OpStop, []sandpit.State{sandpit.StateRunning, sandpit.StatePaused}, sandpit.StateStopped, (*manager.Manager).Stop},
	{"start", fake.OpStart, []sandpit.State{sandpit.StateStopped}, sandpit.StateRunning, (*manager.Manager).Start},
	{"archive", fake.OpArchive, []sandpit.State{sandpit.StateStopped}, sandpit.StateArchived, (*manager.Manager).Archive},
	{"restore", fake.OpRestore, []sandpit.State{sandpit.StateArchived}, sandpit.StateStopped, (*manager.Manager).Restore},
	{"delete", fake.OpDestroy, slices.Collect(maps.Keys(inWorld)), sandpit.StateDeleted, (*manager.Manager).Delete},
}

// inWorld says how the world calls the states that last.
var inWorld = map[sandpit.State]fake.State{
	sandpit.StateRunning: fake.Running, sandpit.StatePaused: fake.Paused,
	sandpit.StateStopped: fake.Stopped, sandpit.StateArchived: fake.Archived,
}

// TestWalks takes random walks: operations, faults, crashes, sandboxes that end by
// themselves. After each step what the manager says, what the store has and what
// there is in the world must be the same.
func TestWalks(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		m := &model{
			outer: t, limit: 4, boxes: make(map[sandpit.ID]sandpit.State), stays: make(map[sandpit.ID][]*manager.Handle),
			rig: &rig{world: fake.NewWorld(t.TempDir()), dir: t.TempDir(), log: &logbook{}, o: testoptions.Manager(manager.Options{
				MaxSandboxes: 4, Retry: 5 * time.Millisecond, Drain: 5 * time.Millisecond, Reconcile: time.Hour, Sweep: time.Hour,
			})},
		}
		m.open(t)
		defer func() {
			m.releaseAll()
			m.close(t)
			if err := m.world.Close(); err != nil {
				rt.Error(err)
			}
		}()
		rt.Repeat(map[string]func(*rapid.T){
			"create":  m.walkCreate,
			"change":  m.walkChange,
			"change2": m.walkChange, // more often
			"use":     m.walkUse,
			"release": m.walkRelease,
			"end":     m.walkEnd,
			"fault":   m.walkFault,
			"crash":   m.walkCrash,
			"":        m.check,
		})
	})
}

func (m *model) pick(rt *rapid.T, states ...sandpit.State) sandpit.ID {
	var ids []sandpit.ID
	for id, s := range m.boxes {
		if len(states) == 0 || slices.Contains(states, s) {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		rt.Skip("no sandbox")
	}
	slices.Sort(ids)
	return ids[rapid.IntRange(0, len(ids)-1).Draw(rt, "which")]
}

// rooms counts the users of each kind of space.
func (m *model) rooms() (n int) {
	for _, s := range m.boxes {
		if s == sandpit.StateRunning || s == sandpit.StatePaused {
			n++
		}
	}
	return n
}

func (m *model) walkCreate(rt *rapid.T) {
	s, err := m.Create(context.Background(), manager.CreateRequest{Owner: "ann"})
	switch {
	case err == nil && m.rooms() >= m.limit:
		rt.Errorf("there are %d already", m.rooms())
	case err != nil && m.rooms() >= m.limit:
		if !errors.Is(err, sandpit.Exhausted) {
			rt.Errorf("create without room: %v", err)
		}
	case err != nil && !errors.Is(err, errOrdered):
		rt.Errorf("create: %v", err)
	case err == nil:
		m.boxes[s.ID] = sandpit.StateRunning
	}
	// What could not be taken back at once is being taken back.
	eventually(m.outer, "nothing is being made", func() bool { return len(m.List(manager.Filter{})) <= m.alive() })
}

func (m *model) alive() (n int) {
	for _, s := range m.boxes {
		if s != sandpit.StateDeleted {
			n++
		}
	}
	return n
}

func (m *model) walkChange(rt *rapid.T) {
	v := rapid.SampledFrom(verbs).Draw(rt, "verb")
	id := m.pick(rt)
	before := m.boxes[id]
	err := v.do(m.Manager, context.Background(), id)
	switch {
	case before == sandpit.StateDeleted:
		if v.name != "delete" && !errors.Is(err, sandpit.Gone) && !errors.Is(err, sandpit.NotFound) {
			rt.Errorf("%s what is gone: %v", v.name, err)
		}
	case !slices.Contains(v.from, before):
		if !errors.Is(err, sandpit.Conflict) {
			rt.Errorf("%s what is %s: %v", v.name, before, err)
		}
	case v.name == "start" && m.rooms() >= m.limit:
		if !errors.Is(err, sandpit.Exhausted) {
			rt.Errorf("start without room: %v", err)
		}
	case err == nil:
		m.boxes[id] = v.to
	case !errors.Is(err, errOrdered):
		rt.Errorf("%s what is %s: %v", v.name, before, err)
	case v.name == "stop" && before == sandpit.StatePaused:
		m.boxes[id] = m.halfStopped(rt, id)
	case v.name == "delete":
		m.boxes[id] = v.to // it is tried again
		eventually(m.outer, "it is deleted", func() bool { return m.state(id) == sandpit.StateDeleted })
	}
	if m.boxes[id] != sandpit.StateRunning {
		m.release(id)
	}
}

// halfStopped returns the state of what was paused and could not be stopped: it is
// resumed first, and then the stop may have failed.
func (m *model) halfStopped(rt *rapid.T, id sandpit.ID) sandpit.State {
	now := m.state(id)
	if now != sandpit.StateRunning && now != sandpit.StatePaused {
		rt.Errorf("what was paused and could not be stopped is %s", now)
	}
	return now
}

func (m *model) walkUse(rt *rapid.T) {
	id := m.pick(rt)
	h, err := m.Use(context.Background(), id)
	if (err == nil) != (m.boxes[id] == sandpit.StateRunning) && !errors.Is(err, errOrdered) {
		rt.Errorf("use what is %s: %v", m.boxes[id], err)
	}
	if err == nil {
		m.stays[id] = append(m.stays[id], h)
	}
}

func (m *model) walkRelease(rt *rapid.T) {
	m.release(m.pick(rt))
}

func (m *model) release(id sandpit.ID) {
	for _, h := range m.stays[id] {
		h.Release()
	}
	delete(m.stays, id)
}

func (m *model) releaseAll() {
	for id := range m.stays {
		m.release(id)
	}
}

// walkEnd has a sandbox end by itself.
func (m *model) walkEnd(rt *rapid.T) {
	id := m.pick(rt, slices.Collect(maps.Keys(inWorld))...)
	var err error
	if rapid.Bool().Draw(rt, "vanish") {
		err = m.world.Vanish(id)
	} else {
		err = m.world.Kill(id, sandpit.Exit{Known: true, Reason: "it crashed"})
	}
	if err != nil {
		rt.Fatal(err)
	}
	m.boxes[id] = sandpit.StateDeleted
	eventually(m.outer, "its end is seen", func() bool { m.Reconcile(context.Background()); return m.state(id) == sandpit.StateDeleted })
	m.release(id)
}

// walkFault orders a fault for later. Of a move of files no caller can find out
// whether it was made when the answer is lost: those only fail before.
func (m *model) walkFault(rt *rapid.T) {
	op := rapid.SampledFrom([]fake.Op{
		fake.OpCreate, fake.OpList, fake.OpAttach, fake.OpDestroy, fake.OpStop, fake.OpStart, fake.OpPause,
		fake.OpResume, fake.OpArchive, fake.OpRestore,
	}).Draw(rt, "op")
	after := op != fake.OpArchive && op != fake.OpRestore && rapid.Bool().Draw(rt, "after")
	m.faults = append(m.faults, m.world.Inject(fake.Fault{Op: op, Err: errOrdered, After: after}))
}

// walkCrash kills the server, perhaps in the middle of something.
func (m *model) walkCrash(rt *rapid.T) {
	for _, remove := range m.faults {
		remove()
	}
	m.faults = nil
	busy := make(chan struct{})
	close(busy)
	if len(m.boxes) > 0 && rapid.Bool().Draw(rt, "busy") {
		v := rapid.SampledFrom(verbs).Draw(rt, "verb")
		id := m.pick(rt)
		if slices.Contains(v.from, m.boxes[id]) && (v.name != "start" || m.rooms() < m.limit) {
			busy = m.crashIn(v, id, rapid.Bool().Draw(rt, "after"))
		}
	}
	m.crash(m.outer)
	<-busy
	m.releaseAll()
	m.open(m.outer)
}

// crashIn begins an operation that does not end before the crash. The next
// manager finishes it.
func (m *model) crashIn(v verb, id sandpit.ID, after bool) chan struct{} {
	op := v.op
	if v.name == "stop" && m.boxes[id] == sandpit.StatePaused {
		op = fake.OpResume // which comes first
	}
	before := m.world.Calls(op, id)
	m.faults = append(m.faults, m.world.Inject(fake.Fault{Op: op, ID: id, Delay: time.Hour, After: after}))
	done := make(chan struct{})
	own := m.Manager
	go func() { defer close(done); _ = v.do(own, context.Background(), id) }()
	eventually(m.outer, "it begins", func() bool { return m.world.Calls(op, id) > before })
	m.boxes[id] = v.to
	return done
}

// check compares the views of all parts.
func (m *model) check(rt *rapid.T) {
	for id, want := range m.boxes {
		got, err := m.Get(id)
		if err != nil || got.State != want {
			rt.Errorf("%s: the manager says %s (%s), %v; want %s", id, got.State, got.Reason, err, want)
		}
		if want == sandpit.StateDeleted && got.Reason == "" {
			rt.Errorf("%s is gone without a reason", id)
		}
		row, err := m.store.Sandboxes().Sandbox(context.Background(), id)
		if err != nil || row.State != want {
			rt.Errorf("%s: the row says %s, %v; want %s", id, row.State, err, want)
		}
		view, there := m.world.Look(id)
		if there != (want != sandpit.StateDeleted) || there && view.State != inWorld[want] {
			rt.Errorf("%s: in the world it is %q, want %q", id, view.State, inWorld[want])
		}
	}
	if got, want := m.Stats().TotalSandboxes, m.alive(); got != want {
		rt.Errorf("%d sandboxes, want %d", got, want)
	}
	if got, want := m.Rooms(), m.rooms(); got != want {
		rt.Errorf("%d take up room, want %d", got, want)
	}
	if got, want := m.worldIDs(), m.alive(); len(got) != want {
		rt.Errorf("%d sandboxes in the world, want %d: %s", len(got), want, fmt.Sprint(got))
	}
}

// worldIDs returns what there is in the world, asked past the manager.
func (m *model) worldIDs() (ids []sandpit.ID) {
	for _, path := range m.world.Leftovers() {
		ids = append(ids, sandpit.ID(path))
	}
	return ids
}
