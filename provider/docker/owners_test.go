package docker_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
)

// TestImagesOfOwners names images as an ordinary owner of a server: of a registry, of the
// engine's users, and of the configuration.
func TestImagesOfOwners(t *testing.T) {
	t.Parallel()
	r := testdocker.NewRegistry(t)
	o := options(t)
	o.Guard = image.NewGuard([]string{r.Host()})
	o.Listed = []string{"sandpit-test/listed:1"}
	p := open(t, o)
	for _, name := range []string{"sandpit-test/local:1", "sandpit-test/listed:1", r.Host() + "/taken:1"} {
		testdocker.Import(t, name, testdocker.BusyboxFiles(t), "ENV FROM=local")
	}
	tagged, _ := r.Push(t, "public", "1", small(t), func(c *testdocker.Config) { c.Env = []string{"FROM=registry"} })
	taken, _ := r.Push(t, "taken", "1", small(t), func(c *testdocker.Config) { c.Env = []string{"FROM=EVIL"} })
	all, err := p.Images(within(t), "")
	if err != nil {
		t.Fatal(err)
	}
	var local image.Entry
	for _, one := range all {
		if strings.HasSuffix(one.Name, "sandpit-test/local:1") {
			local = one
		}
	}
	before := r.Manifests()
	for ref, want := range map[string]sandpit.Code{
		"sandpit-test/local:1": sandpit.NotFound, local.ID: sandpit.NotFound, strings.TrimPrefix(local.ID, "sha256:"): sandpit.Invalid, taken: sandpit.NotFound,
		"": sandpit.Unsupported, "host": sandpit.Unsupported, "/etc/x.tar": sandpit.PermissionDenied, "template:x": sandpit.Unsupported,
		"127.9.9.9:1/x:1": sandpit.PermissionDenied,
	} {
		_, err := p.ResolveImage(within(t), "alice", sandpit.Image(ref))
		if sandpit.CodeOf(err) != want {
			t.Errorf("%q: %v, want %s", ref, err, want)
		}
	}
	if n := r.Manifests(); n != before {
		t.Errorf("the registry gave %d manifests", n-before)
	}
	id, err := p.ResolveImage(within(t), "alice", sandpit.Image(tagged))
	if err != nil {
		t.Fatal(err)
	}
	if got := shell(t, create(t, p, sandpit.Spec{Image: id}), "echo $FROM"); got != "registry\n" {
		t.Errorf("the registry's image says %q", got)
	}
	before = r.Manifests()
	if again, err := p.ResolveImage(within(t), "bob", sandpit.Image(tagged)); err != nil || again != id || r.Manifests() != before {
		t.Errorf("the same again: %s, %v", again, err)
	}
	if _, err := p.ResolveImage(within(t), "alice", "sandpit-test/listed:1"); err != nil {
		t.Errorf("a listed image: %v", err)
	}
	_, err = p.Pull(within(t), "alice", tagged, true, nil)
	wantCode(t, err, sandpit.PermissionDenied)
	_, err = p.Pull(within(t), "alice", "sandpit-test/local:1", false, nil)
	wantCode(t, err, sandpit.NotFound)
	if got, err := p.Pull(within(t), "alice", tagged, false, nil); err != nil || got.ID != string(id) {
		t.Errorf("pull: %+v, %v", got, err)
	}
	seen, err := p.Images(within(t), "alice")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, one := range seen {
		names = append(names, one.Name)
	}
	for name, want := range map[string]bool{tagged: true, "sandpit-test/listed:1": true, "sandpit-test/local:1": false, taken: false} {
		if slices.Contains(names, name) != want {
			t.Errorf("owners see %s: %v, want %v (%q)", name, !want, want, names)
		}
	}
	if got := shell(t, create(t, p, sandpit.Spec{Image: sandpit.Image(taken)}), "echo $FROM"); got != "local\n" {
		t.Errorf("the name that the engine's user gave means %q", got)
	}
}

// TestPullNever has an administrator and an owner fetch where no registry may be asked.
func TestPullNever(t *testing.T) {
	t.Parallel()
	r := testdocker.NewRegistry(t)
	o := options(t)
	o.Pull = image.PullNever
	p := open(t, o)
	tagged, _ := r.Push(t, "never", "1", small(t), nil)
	for _, always := range []bool{false, true} {
		_, err := p.Pull(within(t), "", tagged, always, nil)
		if wantCode(t, err, sandpit.PermissionDenied); err != nil && !strings.Contains(err.Error(), "image.pull") {
			t.Errorf("the error does not name the setting: %v", err)
		}
	}
	_, err := p.Pull(within(t), "alice", tagged, false, nil)
	wantCode(t, err, sandpit.NotFound)
	if n := r.Manifests(); n > 0 {
		t.Errorf("the registry gave %d manifests", n)
	}
}
