package gvisor_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestClaim claims a sandbox with another user and directory.
func TestClaim(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{Labels: map[string]string{"longer": "than what comes after it, by far"}})
	spec := sandpit.Spec{Env: map[string]string{"SECRET": "s3cret"}, User: "65534:65534", WorkDir: "/home/a"}
	if err := box.(sandpit.Claimer).Claim(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	if got, want := output(t, box, "echo $SECRET $(pwd) $(id -u)"), "s3cret /home/a 65534"; got != want {
		t.Errorf("inside: %q, want %q", got, want)
	}
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || len(list[0].Spec.Labels) != 0 || list[0].Spec.Env != nil {
		t.Errorf("list: %+v, %v", list, err)
	}
}

// TestClaimRefuses asks for what only this provider can tell.
func TestClaimRefuses(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{})
	for name, spec := range map[string]sandpit.Spec{
		"mounts":    {Mounts: []sandpit.Mount{{Source: t.TempDir(), Target: "/mnt"}}},
		"user":      {User: "nobody-of-that-name"},
		"directory": {WorkDir: "not/absolute"},
	} {
		err := box.(sandpit.Claimer).Claim(t.Context(), spec)
		if sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%s: %v, want %s", name, err, sandpit.Invalid)
		}
	}
}
