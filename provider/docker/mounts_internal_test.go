package docker

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestMountsRefused shows paths of the machine that give a sandbox the machine, and some that
// do not.
func TestMountsRefused(t *testing.T) {
	t.Parallel()
	dir, state := t.TempDir(), t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	o := withNumbers(Options{StateDir: state, Manager: "test", Endpoint: Endpoint{Host: "unix:///srv/engine/docker.sock"}})
	checked, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer checked.Close()
	o.Mounts = AnyMounts
	trusted, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	defer trusted.Close()
	refused := []string{
		"/", "/etc", "/etc/ssl", "/proc", "/sys/fs", "/dev", "/root", "/root/.ssh", "/home", "/run/docker.sock", "/var/run/docker.sock",
		"/srv/engine", "/srv/engine/docker.sock", "/var/lib/docker/volumes", state, filepath.Join(state, "records"), link, filepath.Join(link, "ssl"),
	}
	for _, path := range refused {
		spec := sandpit.Spec{Image: "busybox", Mounts: []sandpit.Mount{{Source: path, Target: "/data", ReadOnly: true}}}
		if err := checked.validateSpec(spec); sandpit.CodeOf(err) != sandpit.PermissionDenied {
			t.Errorf("mount %s: %v, want it refused", path, err)
		}
		if err := trusted.validateSpec(spec); err != nil {
			t.Errorf("mount %s with AnyMounts: %v", path, err)
		}
	}
	for _, m := range []sandpit.Mount{{Source: dir, Target: "/data"}, {Source: "/usr/share", Target: "/data"}, {Source: "/nowhere/here", Target: "/data"}, {Volume: "etc", Target: "/data"}} {
		if err := checked.validateSpec(sandpit.Spec{Image: "busybox", Mounts: []sandpit.Mount{m}}); err != nil {
			t.Errorf("mount %+v: %v", m, err)
		}
	}
}
