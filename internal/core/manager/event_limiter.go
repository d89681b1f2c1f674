package manager

import (
	"strconv"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// The bounds of what one actor may add to the audit trail. Further events are recorded only as a
// number of omitted events each minute.
const (
	eventRate    = 20   // events of a class a second
	eventBurst   = 1200 // events of a class at once
	refusalRate  = 1
	refusalBurst = 60
	omittedEvery = time.Minute
)

// actionOmitted is the action of an event that stands for others.
const actionOmitted = "events omitted"

// eventLimiter prevents one actor from filling the audit trail, which all owners share.
type eventLimiter struct {
	mu     sync.Mutex
	actors map[eventSource]*eventAllowance
}

// eventAllowance is what one actor may still add.
type eventAllowance struct {
	events, refusals *rate.Limiter
	omitted          int
	since            time.Time // of the first omitted event
	last             store.Event
}

func newEventLimiter() *eventLimiter {
	return &eventLimiter{actors: make(map[eventSource]*eventAllowance)}
}

// allow reports whether an event is recorded as an event of its own. If not, it is counted.
func (l *eventLimiter) allow(e store.Event, class eventClass) bool {
	if e.Actor == actorManager {
		return true // the manager's own events have a bounded rate
	}
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.allowance(eventSource{e.Actor, class}, now)
	if (e.Result == resultOK || a.refusals.AllowN(now, 1)) && a.events.AllowN(now, 1) {
		return true
	}
	if a.omitted == 0 {
		a.since = now
	}
	a.omitted++
	a.last = e
	return false
}

// eventSource is an actor and a class of events, which have an allowance of their own.
type eventSource struct {
	actor string
	class eventClass
}

// allowance returns the allowance of a source. When there are too many actors, new ones share one.
// The lock is held.
func (l *eventLimiter) allowance(actor eventSource, now time.Time) *eventAllowance {
	if a := l.actors[actor]; a != nil {
		return a
	}
	if len(l.actors) >= maxActors {
		l.forgetIdle(now)
	}
	if len(l.actors) >= maxActors {
		actor.actor = ""
	}
	a := l.actors[actor]
	if a == nil {
		a = &eventAllowance{events: rate.NewLimiter(eventRate, eventBurst), refusals: rate.NewLimiter(refusalRate, refusalBurst)}
		l.actors[actor] = a
	}
	return a
}

// forgetIdle removes the sources whose allowance is unused. The lock is held.
func (l *eventLimiter) forgetIdle(now time.Time) {
	for actor, a := range l.actors {
		if a.omitted == 0 && a.events.TokensAt(now) >= eventBurst && a.refusals.TokensAt(now) >= refusalBurst {
			delete(l.actors, actor)
		}
	}
}

// takeOmitted returns an event for each source whose events have been omitted for a minute, or,
// with all, for any time.
func (l *eventLimiter) takeOmitted(all bool) (events []store.Event) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.actors {
		if a.omitted == 0 || !all && now.Sub(a.since) < omittedEvery {
			continue
		}
		events = append(events, store.Event{
			Actor: a.last.Actor, Owner: a.last.Owner, Action: actionOmitted, Result: string(sandpit.Exhausted),
			Message: "more events than one actor may add to the audit trail",
			Args:    map[string]string{"events": strconv.Itoa(a.omitted), "last": a.last.Action, "last result": a.last.Result},
		})
		a.omitted = 0
	}
	return events
}
