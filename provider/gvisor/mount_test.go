package gvisor_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestMountsFollowTheMachine changes a shown directory on the machine after the
// sandbox has learnt what was in it.
func TestMountsFollowTheMachine(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("changed", "old")
	write("replaced", "old")
	write("removed", "old")
	for _, readOnly := range []bool{false, true} {
		box := create(t, newProvider(t, t.TempDir()), sandpit.Spec{
			Mounts: []sandpit.Mount{{Source: dir, Target: "/shown", ReadOnly: readOnly}},
		})
		const look = "cd /shown; for f in changed replaced removed added; do [ -e $f ] && echo $f $(cat $f); done; ls | wc -l"
		if got, want := output(t, box, look), "changed old\nreplaced old\nremoved old\n3"; got != want {
			t.Fatalf("at first: %q, want %q", got, want)
		}
		write("changed", "newer")
		write("other", "newer")
		write("added", "newer")
		if err := os.Rename(filepath.Join(dir, "other"), filepath.Join(dir, "replaced")); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, "removed")); err != nil {
			t.Fatal(err)
		}
		if got, want := output(t, box, look), "changed newer\nreplaced newer\nadded newer\n3"; got != want {
			t.Errorf("read only %v, after the changes: %q, want %q", readOnly, got, want)
		}
		write("changed", "old")
		write("replaced", "old")
		write("removed", "old")
		if err := os.Remove(filepath.Join(dir, "added")); err != nil {
			t.Fatal(err)
		}
	}
}

// TestMountsFollowNoLinks has a directory on the way to a mount's source be exchanged
// for a link after its path was looked at.
func TestMountsFollowNoLinks(t *testing.T) {
	t.Parallel()
	dir, secret := t.TempDir(), t.TempDir()
	if err := os.MkdirAll(filepath.Join(dir, "way", "shown"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(secret, "shown"), 0o755); err != nil {
		t.Fatal(err)
	}
	p := newProvider(t, t.TempDir())
	spec := sandpit.Spec{Mounts: []sandpit.Mount{{Source: filepath.Join(dir, "way", "shown"), Target: "/shown"}}}
	if got := output(t, create(t, p, spec), "ls -A /shown"); got != "" {
		t.Errorf("shown: %q", got)
	}
	if err := os.Rename(filepath.Join(dir, "way"), filepath.Join(dir, "away")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(dir, "way")); err != nil {
		t.Fatal(err)
	}
	_, err := p.Create(t.Context(), sandpit.NewID(), spec)
	if sandpit.CodeOf(err) != sandpit.PermissionDenied || !strings.Contains(err.Error(), "symbolic link") {
		t.Errorf("create: %v (%s)", err, sandpit.CodeOf(err))
	}
}
