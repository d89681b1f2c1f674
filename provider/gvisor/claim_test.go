package gvisor_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestClaim gives a sandbox that was made ahead to somebody, whose own it is from
// then on.
func TestClaim(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	made := sandpit.Spec{Labels: map[string]string{"pool": "of sandboxes, waiting for somebody"}}
	box := create(t, p, made)
	stranger, err := p.Attach(t.Context(), box.Handle()) // with the key that it had
	if err != nil {
		t.Fatal(err)
	}

	spec := sandpit.Spec{
		Labels: map[string]string{"owner": "a"}, Env: map[string]string{"SECRET": "s3cret"},
		User: "65534:65534", WorkDir: "/home/a",
	}
	claimer, ok := box.(sandpit.Claimer)
	if !ok {
		t.Fatal("a sandbox cannot be claimed")
	}
	if err := claimer.Claim(t.Context(), spec); err != nil {
		t.Fatal(err)
	}
	want := "s3cret /home/a 65534"
	if got := output(t, box, "echo $SECRET $(pwd) $(id -u)"); got != want {
		t.Errorf("inside: %q, want %q", got, want)
	}
	if _, err := stranger.Guest().ListProcesses(t.Context()); sandpit.CodeOf(err) != sandpit.Unauthenticated {
		t.Errorf("with the old key: %v, want %s", err, sandpit.Unauthenticated)
	}
	again, err := p.Attach(t.Context(), box.Handle())
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, again, "echo $SECRET $(pwd) $(id -u)"); got != want {
		t.Errorf("attached: %q, want %q", got, want)
	}
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || len(list[0].Spec.Labels) != 1 || list[0].Spec.Labels["owner"] != "a" || list[0].Spec.Env != nil {
		t.Errorf("list: %+v, %v", list, err)
	}
}

// TestClaimRefuses asks for what cannot be changed any more.
func TestClaimRefuses(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	box := create(t, p, sandpit.Spec{})
	for name, spec := range map[string]sandpit.Spec{
		"image":     {Image: sandpit.Image(t.TempDir())},
		"limits":    {Resources: sandpit.Resources{PIDs: 5}},
		"host name": {Hostname: "other"},
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
