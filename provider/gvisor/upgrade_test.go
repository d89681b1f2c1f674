package gvisor_test

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// forge has a saved kernel be of a version of the engine.
func forge(t *testing.T, dir, kind, name, version string) {
	t.Helper()
	path := filepath.Join(dir, kind, name, "manifest.json")
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	forged := regexp.MustCompile(`"engine":"[^"]*"`).ReplaceAll(data, []byte(`"engine":"`+version+`"`))
	if err := os.WriteFile(path, forged, 0o600); err != nil {
		t.Fatal(err)
	}
}

const otherVersion = "v9.9.9"

// TestSuspendedByAnotherVersion has a sandbox paused on disk by a version of the engine that
// is not this one: with its files beside, it can be started, and without them it waits for
// that version.
func TestSuspendedByAnotherVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	spec := sandpit.Spec{Image: busyboxImage(t), Env: map[string]string{"A": "b"}}
	box, bare := create(t, p, spec), create(t, p, spec)
	for _, b := range []sandpit.Instance{box, bare} {
		counting(t, b)
		count(t, b)
		output(t, b, "echo kept > /note; busybox rm /bin/wc")
		suspend(t, b)
	}
	own := regexp.MustCompile(`"engine":"([^"]*)"`)
	data, err := os.ReadFile(filepath.Join(dir, "suspended", string(bare.ID()), "manifest.json"))
	if err != nil {
		t.Fatal(err)
	}
	version := string(own.FindSubmatch(data)[1])
	forge(t, dir, "suspended", string(bare.ID()), otherVersion)
	upgraded, err := p.UpgradeState(t.Context())
	if err != nil || len(upgraded) != 2 {
		t.Fatalf("upgrade: %+v, %v", upgraded, err)
	}
	for _, u := range upgraded {
		switch u.ID {
		case box.ID():
			if !u.Done || u.Err != nil {
				t.Errorf("upgrade: %+v", u)
			}
		case bare.ID():
			wantError(t, "upgrade what is of another version", u.Err, sandpit.Unsupported)
		}
	}
	if again, err := p.UpgradeState(t.Context()); err != nil || again[0].Done || again[1].Done {
		t.Errorf("upgrade it again: %+v, %v", again, err)
	}
	expectRunsOn(t, box)
	suspend(t, box) // which writes no files
	if _, err := p.UpgradeState(t.Context()); err != nil {
		t.Fatal(err)
	}

	forge(t, dir, "suspended", string(box.ID()), otherVersion)
	for _, b := range []sandpit.Instance{box, bare} {
		err := b.(sandpit.Pauser).Resume(t.Context())
		wantError(t, "resume", err, sandpit.Unsupported)
		if (sandpit.HintOf(err) != "") != (b == box) {
			t.Errorf("hint: %q", sandpit.HintOf(err))
		}
	}
	wantError(t, "stop what has no files", bare.(sandpit.Stopper).Stop(t.Context()), sandpit.Unsupported)
	stopOf(t, box)
	wantError(t, "resume what is stopped", box.(sandpit.Pauser).Resume(t.Context()), sandpit.Conflict)
	startOf(t, box)
	if got := output(t, box, "cat /note; echo $A; [ -e /bin/wc ] || echo removed; busybox grep -l '[m]kfifo' /proc/[0-9]*/cmdline >/dev/null 2>&1 || echo none"); got != "kept\nb\nremoved\nnone" {
		t.Errorf("started with its files it says %q", got)
	}
	forge(t, dir, "suspended", string(bare.ID()), version)
	expectRunsOn(t, bare)
	destroy(t, box, bare)
}

// expectRunsOn resumes a sandbox, in which a program continues that has counted once.
func expectRunsOn(t *testing.T, box sandpit.Instance) {
	t.Helper()
	resume(t, box)
	if got := count(t, box); got != "2" {
		t.Errorf("it counts %s", got)
	}
}

// TestSnapshotOfAnotherVersion has copies begin with the files alone.
func TestSnapshotOfAnotherVersion(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	p := newProvider(t, dir)
	box := create(t, p, sandpit.Spec{Image: busyboxImage(t)})
	counting(t, box)
	output(t, box, "echo kept > /note")
	snap := snapshotOf(t, box)
	if !snap.Memory || snap.Unloadable != "" {
		t.Errorf("a snapshot is %+v", snap)
	}
	forge(t, dir, "snapshots", string(snap.ID), otherVersion)
	var exported bytes.Buffer
	if err := p.ExportSnapshot(t.Context(), snap.ID, &exported); err != nil {
		t.Fatal(err)
	}
	other, err := p.ImportSnapshot(t.Context(), sandpit.NewSnapshotID(), &exported)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []sandpit.Snapshot{snap, other} {
		expectFilesOnly(t, p, s.ID)
		if err := p.RemoveSnapshot(t.Context(), s.ID); err != nil {
			t.Fatal(err)
		}
	}
	destroy(t, box)
}

func expectFilesOnly(t *testing.T, p *gvisor.Provider, id sandpit.SnapshotID) {
	t.Helper()
	all, err := p.ListSnapshots(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range all {
		if s.Memory || s.Unloadable != "" {
			t.Errorf("one of another version is %+v", s)
		}
	}
	fork := create(t, p, sandpit.Spec{Image: sandpit.SnapshotImage(id), Env: map[string]string{"A": "own"}, Hostname: "copy"})
	if got := output(t, fork, "cat /note; echo $A; busybox hostname; busybox grep -l '[m]kfifo' /proc/[0-9]*/cmdline >/dev/null 2>&1 || echo none"); got != "kept\nown\ncopy\nnone" {
		t.Errorf("the copy says %q", got)
	}
	destroy(t, fork)
}
