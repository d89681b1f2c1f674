package cgroup

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

const hostRoot = "/host"

func TestSandboxParent(t *testing.T) {
	t.Parallel()
	owner := ownerGroupName("bob")
	v1 := Groups{V1: map[Controller]string{CPU: "/cpu/e", Memory: "/memory/e"}}
	v2 := Groups{V2: "/all/e", V2Has: []Controller{CPU, Memory}}
	for name, tc := range map[string]struct {
		g     Groups
		c     Controller
		owner string
		want  string
	}{
		"version 1":        {v1, CPU, "bob", filepath.Join(hostRoot, "/cpu/e", owner)},
		"version 1 memory": {v1, Memory, "bob", filepath.Join(hostRoot, "/memory/e")},
		"version 1 pool":   {v1, CPU, "", filepath.Join(hostRoot, "/cpu/e")},
		"version 2":        {v2, CPU, "bob", filepath.Join(hostRoot, "/all/e", owner)},
		"version 2 memory": {v2, Memory, "bob", filepath.Join(hostRoot, "/all/e", owner)},
		"version 2 pool":   {v2, Memory, "", filepath.Join(hostRoot, "/all/e")},
		"missing":          {v2, PIDs, "bob", ""},
	} {
		if got := tc.g.sandboxParent(hostRoot, tc.c, tc.owner); got != tc.want {
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
		if err := (Groups{}).CreateSandboxGroup(hostRoot, group); err != nil {
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
