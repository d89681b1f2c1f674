// Package providertest is the test suite that every provider must pass. A provider's own tests call
// Run with a Harness. Optional abilities are tested where an instance has them, and skipped visibly
// elsewhere.
//
// Each check takes a trial: a *testing.T with the provider under test. Checks that need any sandbox
// share one, with a directory for each check; checks about the life of a sandbox create their own.
package providertest

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Harness gives the suite providers and control over them.
type Harness struct {
	// New returns an empty provider of its own, and closes it when t ends.
	New func(t *testing.T) sandpit.Provider
	// Reopen returns another provider over the state of p, as after a crash, and closes it when t
	// ends. Default: such checks are skipped.
	Reopen func(t *testing.T, p sandpit.Provider) sandpit.Provider
	// Kill ends a sandbox of p from outside, without p. Default: such checks are
	// skipped.
	Kill func(t *testing.T, p sandpit.Provider, id sandpit.ID)
	// Spec is the spec of sandboxes. Its image must have a shell and the usual small programs;
	// python3 is used if it exists.
	Spec sandpit.Spec
	// Leftovers returns what sandboxes left on the machine. It must find nothing at the end, when
	// all are destroyed and all providers closed.
	Leftovers func(t *testing.T) []string
	// Groups are the groups of checks to run, for a configuration that differs from another one only in
	// them. Default: all.
	Groups []string
	// Isolated is set if a sandbox has its own files, users, ports and host name.
	Isolated bool
	// OwnHost is set if programs that listen at ports see a host name of the provider's in requests.
	OwnHost bool
	// Missing are checks that the provider cannot pass, named "group/check", and why. They are
	// skipped with that reason. Default: none.
	Missing map[string]string
	// Patience is how long one step may take before it counts as hanging. Default: 30 seconds.
	Patience time.Duration
}

// check is one requirement on a provider.
type check struct {
	name string
	run  func(*trial)
}

// group is a group of checks about one subject.
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

// ProviderGroups returns the groups of checks, for Harness.Groups, whose results depend on the provider itself. The
// other groups call the guest, which is the same for several providers.
func ProviderGroups() []string {
	return []string{"lifecycle", "crash", "abilities", "cancel", "ports", "volumes", "snapshots"}
}

// Run checks a provider, in parallel subtests named GROUP/CHECK.
func Run(t *testing.T, h Harness) {
	t.Helper()
	if h.Patience == 0 {
		h.Patience = 30 * time.Second
	}
	t.Cleanup(func() { // runs last
		if left := h.Leftovers(t); len(left) > 0 {
			t.Errorf("left on the machine:\n%s", strings.Join(left, "\n"))
		}
	})
	checkMissing(t, h)
	s := newSuite(t, h)
	for _, g := range groups() {
		if len(h.Groups) > 0 && !slices.Contains(h.Groups, g.name) {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			t.Parallel()
			for _, c := range g.checks {
				t.Run(c.name, func(t *testing.T) {
					if why, missing := h.Missing[g.name+"/"+c.name]; missing {
						t.Skipf("missing: %s", why)
					}
					t.Parallel()
					c.run(s.newTrial(t))
				})
			}
		})
	}
}

// checkMissing fails the test if Harness.Missing names a check, or Harness.Groups a group, that does not exist.
func checkMissing(t *testing.T, h Harness) {
	t.Helper()
	known := make(map[string]bool)
	for _, g := range groups() {
		for _, c := range g.checks {
			known[g.name+"/"+c.name] = true
		}
	}
	for _, name := range h.Groups {
		if !slices.ContainsFunc(groups(), func(g group) bool { return g.name == name }) {
			t.Errorf("Groups names the group %q, which does not exist", name)
		}
	}
	for name, why := range h.Missing {
		if !known[name] || why == "" {
			t.Errorf("Missing names the check %q, for the reason %q: want a check that exists, and a reason", name, why)
		}
	}
}

// suite is the state that all checks share.
type suite struct {
	Harness

	provider sandpit.Provider
	box      sandpit.Instance
	workDir  string // of commands in the shared sandbox
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

// String implements fmt.Stringer, for readable messages.
func (n named[T]) String() string { return n.name }
