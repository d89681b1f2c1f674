package manager

import (
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// refusals counts how often actors are refused.
type refusals struct {
	o Suspicion

	mu     sync.Mutex
	actors map[string]*offender
}

// offender has the last refusals of one actor.
type offender struct {
	times      []time.Time // of the last Suspicion.Refusals refusals
	reportedAt time.Time   // of the last event
}

// maxActors bounds how many actors are watched.
const maxActors = 10_000

// countRefusal counts a refusal. It returns the number of recent refusals if an event is due, else
// zero. It uses monotonic time, which cannot be set.
func (f *refusals) countRefusal(r Report) int {
	if !isRefusal(r) {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	now := time.Now()
	a := f.actors[r.Actor]
	if a == nil {
		f.forgetOld(now)
		if len(f.actors) >= maxActors {
			return 0
		}
		a = &offender{}
		f.actors[r.Actor] = a
	}
	a.times = append(a.times, now)
	if over := len(a.times) - f.o.Refusals; over > 0 {
		a.times = a.times[over:]
	}
	if len(a.times) < f.o.Refusals || now.Sub(a.times[0]) > f.o.Window {
		return 0
	}
	if !a.reportedAt.IsZero() && now.Sub(a.reportedAt) < f.o.Window {
		return 0
	}
	a.reportedAt = now
	return len(a.times)
}

// forgetOld removes actors without recent refusals, if there are many.
func (f *refusals) forgetOld(now time.Time) {
	if len(f.actors) < maxActors {
		return
	}
	for name, a := range f.actors {
		if now.Sub(a.times[len(a.times)-1]) > f.o.Window {
			delete(f.actors, name)
		}
	}
}

func isRefusal(r Report) bool {
	switch sandpit.CodeOf(r.Err) {
	case sandpit.PermissionDenied, sandpit.Unauthenticated:
		return true
	case sandpit.Invalid:
		return r.Restricted
	default:
		return false
	}
}
