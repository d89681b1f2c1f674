package gvisor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func TestSandboxParent(t *testing.T) {
	t.Parallel()
	owner := ownerGroupName("bob")
	v1 := cgroups{V1: map[controller]string{cpuController: "/cpu/e", memoryController: "/memory/e"}}
	v2 := cgroups{V2: "/all/e", V2Has: []controller{cpuController, memoryController}}
	for name, tc := range map[string]struct {
		g     cgroups
		c     controller
		owner string
		want  string
	}{
		"version 1":        {v1, cpuController, "bob", filepath.Join(hostRoot, "/cpu/e", owner)},
		"version 1 memory": {v1, memoryController, "bob", filepath.Join(hostRoot, "/memory/e")},
		"version 1 pool":   {v1, cpuController, "", filepath.Join(hostRoot, "/cpu/e")},
		"version 2":        {v2, cpuController, "bob", filepath.Join(hostRoot, "/all/e", owner)},
		"version 2 memory": {v2, memoryController, "bob", filepath.Join(hostRoot, "/all/e", owner)},
		"version 2 pool":   {v2, memoryController, "", filepath.Join(hostRoot, "/all/e")},
		"missing":          {v2, pidsController, "bob", ""},
	} {
		if got := tc.g.sandboxParent(tc.c, tc.owner); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

// TestOwnerGroup has sandboxes of one owner come and go: the owner's group is there while one
// of them is.
func TestOwnerGroup(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	parent := filepath.Join(dir, ownerGroupName("bob"))
	first, second := filepath.Join(parent, string(sandpit.NewID())), filepath.Join(parent, string(sandpit.NewID()))
	for _, group := range []string{first, second} {
		if err := (cgroups{}).makeSandboxGroup(group); err != nil {
			t.Fatal(err)
		}
	}
	for _, group := range []string{first, second} {
		if _, err := os.Stat(parent); err != nil {
			t.Error(err)
		}
		if err := os.Remove(group); err != nil {
			t.Fatal(err)
		}
		removeOwnerGroup(group)
	}
	if _, err := os.Stat(parent); !os.IsNotExist(err) {
		t.Errorf("the owner's group is left: %v", err)
	}
	removeOwnerGroup(filepath.Join(dir, string(sandpit.NewID())))
	if _, err := os.Stat(dir); err != nil {
		t.Errorf("a group of no owner was removed: %v", err)
	}
}
