package sandpit_test

import (
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

var states = []sandpit.State{
	sandpit.StateCreating, sandpit.StateRunning, sandpit.StatePausing, sandpit.StatePaused, sandpit.StateResuming,
	sandpit.StateStopping, sandpit.StateStopped, sandpit.StateArchiving, sandpit.StateArchived, sandpit.StateRestoring,
	sandpit.StateError, sandpit.StateDeleting, sandpit.StateDeleted,
}

// TestStates checks what holds for every state, whatever the way through them.
func TestStates(t *testing.T) {
	t.Parallel()
	for _, s := range states {
		if !s.Valid() {
			t.Errorf("%s is not valid", s)
		}
		if got, want := s.Lasting(), !strings.HasSuffix(string(s), "ing") || s == sandpit.StateRunning; got != want {
			t.Errorf("%s lasts: %t, want %t", s, got, want)
		}
		if s.CanBecome(s) || s.CanBecome("asleep") {
			t.Errorf("%s can become itself or something unknown", s)
		}
		if s != sandpit.StateDeleted && s != sandpit.StateDeleting && !s.CanBecome(sandpit.StateDeleting) {
			t.Errorf("%s cannot be deleted", s)
		}
		if !s.Lasting() && s != sandpit.StateDeleting && !s.CanBecome(sandpit.StateError) {
			t.Errorf("%s cannot fail", s)
		}
		for _, next := range states {
			if s.Lasting() && next.Lasting() && next != sandpit.StateError && s.CanBecome(next) {
				t.Errorf("%s becomes %s without a way", s, next)
			}
		}
	}
	if sandpit.State("").Valid() || sandpit.State("asleep").CanBecome(sandpit.StateRunning) {
		t.Error("an unknown state is one")
	}
	if reached := reachable(sandpit.StateCreating); len(reached) != len(states) {
		t.Errorf("from the first state %d of %d can be reached: %v", len(reached), len(states), reached)
	}
}

func reachable(from sandpit.State) map[sandpit.State]bool {
	seen := map[sandpit.State]bool{from: true}
	for queue := []sandpit.State{from}; len(queue) > 0; queue = queue[1:] {
		for _, next := range states {
			if queue[0].CanBecome(next) && !seen[next] {
				seen[next] = true
				queue = append(queue, next)
			}
		}
	}
	return seen
}
