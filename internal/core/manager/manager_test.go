package manager_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

func TestLife(t *testing.T) {
	t.Parallel()
	r := newRig(t, manager.Options{})
	s := r.create(t, manager.CreateRequest{Owner: "ann"})
	r.wantState(t, s.ID, sandpit.StateRunning)
	for _, step := range []struct {
		name string
		do   func() error
		want sandpit.State
	}{
		{"pause", func() error { return r.Pause(t.Context(), s.ID) }, sandpit.StatePaused},
		{"resume", func() error { return r.Resume(t.Context(), s.ID) }, sandpit.StateRunning},
		{"stop", func() error { return r.Stop(t.Context(), s.ID) }, sandpit.StateStopped},
		{"archive", func() error { return r.Archive(t.Context(), s.ID) }, sandpit.StateArchived},
		{"restore", func() error { return r.Restore(t.Context(), s.ID) }, sandpit.StateStopped},
		{"start", func() error { return r.Start(t.Context(), s.ID) }, sandpit.StateRunning},
		{"pause again", func() error { return r.Pause(t.Context(), s.ID) }, sandpit.StatePaused},
		{"stop what is paused", func() error { return r.Stop(t.Context(), s.ID) }, sandpit.StateStopped},
		{"delete", func() error { return r.Delete(t.Context(), s.ID) }, sandpit.StateDeleted},
	} {
		if err := step.do(); err != nil {
			t.Fatalf("%s: %v", step.name, err)
		}
		r.wantState(t, s.ID, step.want)
	}
	r.wantGone(t, s.ID, "killed by ann")
}
