// Package providertest holds what every provider must do, as one test suite. A
// provider's own tests call Run with a Harness; optional abilities are tested
// where an instance has them, and skipped visibly elsewhere.
//
// Each check takes a trial: a *testing.T with the provider under test. Checks that only need some sandbox share one, where each
// has a directory of its own; those about the life of a sandbox make their own.
package providertest

import (
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Harness is a provider as the suite needs it.
type Harness struct {
	// New returns a provider with nothing in it, which others do not see, and
	// closes it when t ends.
	New func(t *testing.T) sandpit.Provider
	// Reopen returns another provider over the state of p, as a program has it
	// that starts after a crash, and closes it when t ends. Default: such checks
	// are skipped.
	Reopen func(t *testing.T, p sandpit.Provider) sandpit.Provider
	// Kill ends a sandbox of p from outside, without p. Default: such checks are
	// skipped.
	Kill func(t *testing.T, p sandpit.Provider, id sandpit.ID)
	// Spec is what sandboxes are made from. Its image must have a shell and the
	// usual small programs; python3 is made use of if it is there.
	Spec sandpit.Spec
	// Leftovers names what is left on the machine of all sandboxes, at the end
	// when all are destroyed and all providers closed. It must find nothing.
	Leftovers func(t *testing.T) []string
	// Isolated says that a sandbox has files, users, ports and a host name of its
	// own.
	Isolated bool
	// Patience is how long one step may take before it counts as hanging.
	// Default: 30 seconds.
	Patience time.Duration
}

// check is one thing that a provider must do.
type check struct {
	name string
	run  func(*trial)
}

// group is checks about one thing.
type group struct {
	name   string
	checks []check
}

func groups() []group {
	return []group{
		{"lifecycle", lifecycleChecks()},
		{"crash", crashChecks()},
		{"abilities", abilityChecks()},
		{"cancel", cancelChecks()},
		{"commands", commandChecks()},
		{"signals", signalChecks()},
		{"streams", streamChecks()},
		{"connect", connectChecks()},
		{"journal", journalChecks()},
		{"terminal", terminalChecks()},
		{"files", fileChecks()},
		{"paths", pathChecks()},
		{"confined", confinedChecks()},
		{"trees", treeChecks()},
		{"watch", watchChecks()},
		{"ports", portChecks()},
		{"volumes", volumeChecks()},
		{"snapshots", snapshotChecks()},
	}
}

// Run checks a provider, in parallel subtests named GROUP/CHECK.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.Patience == 0 {
		h.Patience = 30 * time.Second
	}
	t.Cleanup(func() { // the last of all
		if left := h.Leftovers(t); len(left) > 0 {
			t.Errorf("left on the machine:\n%s", strings.Join(left, "\n"))
		}
	})
	s := newSuite(t, h)
	for _, g := range groups() {
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range g.checks {
				t.Run(c.name, func(t *testing.T) {
					t.Parallel()
					c.run(s.newTrial(t))
				})
			}
		})
	}
}

// suite is what all checks share.
type suite struct {
	Harness

	provider sandpit.Provider
	box      sandpit.Instance
	workDir  string // where the shared sandbox's commands start
}

// sharedEnv is in the shared sandbox's environment.
func sharedEnv() map[string]string {
	return map[string]string{"SUITE_SPEC": "from the spec", "SUITE_BOTH": "from the spec"}
}

func newSuite(t *testing.T, h Harness) *suite {
	t.Helper()
	s := &suite{Harness: h, provider: h.New(t)}
	c := s.newTrial(t)
	spec := h.Spec.Clone()
	if spec.Env == nil {
		spec.Env = make(map[string]string)
	}
	maps.Copy(spec.Env, sharedEnv())
	s.box = c.createWith(s.provider, spec)
	s.workDir = c.workDirOf(s.box)
	return s
}

func (s *suite) newTrial(t *testing.T) *trial {
	t.Helper()
	return &trial{T: t, suite: s}
}

// each runs one subtest for every case, in the order of their names.
func each[T any](c *trial, cases []named[T], run func(*trial, T)) {
	for _, one := range cases {
		c.Run(one.name, func(t *testing.T) { run(c.newTrial(t), one.value) })
	}
}

type named[T any] struct {
	name  string
	value T
}

// String makes messages readable.
func (n named[T]) String() string { return n.name }
