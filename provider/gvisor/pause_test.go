package gvisor_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestPausedSandboxIsMeasured measures a sandbox whose guest cannot be asked.
func TestPausedSandboxIsMeasured(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	pauser, statser := box.(sandpit.Pauser), box.(sandpit.Statser)
	if err := pauser.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, err := statser.Stats(t.Context()); err != nil || s.Memory <= 0 {
		t.Errorf("paused: %+v, %v", s, err)
	}
	if err := pauser.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s, err := statser.Stats(t.Context()); err != nil || s.Memory <= 0 {
		t.Errorf("resumed: %+v, %v", s, err)
	}
}

// TestPausedSandboxIsFoundAgain has another process's provider resume it, as after a
// restart of the process that paused it.
func TestPausedSandboxIsFoundAgain(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	box, err := p.Create(t.Context(), sandpit.NewID(), sandpit.Spec{})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.(sandpit.Pauser).Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	other := newProvider2(t, dir)
	found, err := other.Attach(t.Context(), box.Handle())
	if err != nil {
		t.Fatal(err)
	}
	pauser := found.(sandpit.Pauser)
	if err := pauser.Pause(t.Context()); sandpit.CodeOf(err) != sandpit.Conflict {
		t.Errorf("pause what is paused: %v", err)
	}
	if err := pauser.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := found.Guest().ListProcesses(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestResumeOfTheDead resumes a sandbox whose kernel was killed a moment ago, which its
// engine may not have seen yet: it is gone, and not merely out of order.
func TestResumeOfTheDead(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	for range 3 {
		box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
		if err := box.(sandpit.Pauser).Pause(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !killKernelOf(box.ID()) {
			t.Fatal("there is no kernel to kill")
		}
		if err := box.(sandpit.Pauser).Resume(t.Context()); sandpit.CodeOf(err) != sandpit.Gone {
			t.Errorf("resume: %v, want it to be gone", err)
		}
		destroy(t, box)
	}
}
