package hostpath_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/hostpath"
)

func TestCheckRefusesTheMachine(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/etc", "/etc/ssl", "/proc", "/proc/sys", "/sys", "/dev", "/run", "/var"} {
		if _, err := os.Stat(path); err != nil {
			continue // not on this machine
		}
		if got := sandpit.CodeOf(hostpath.Check(path, nil)); got != sandpit.PermissionDenied {
			t.Errorf("Check(%q) = %q, want %q", path, got, sandpit.PermissionDenied)
		}
		if err := hostpath.Check(path, []string{path}); err != nil {
			t.Errorf("Check(%q) told twice: %v", path, err)
		}
	}
}

func TestCheckAllowsTheUsersOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{dir, file, "/usr"} {
		if err := hostpath.Check(path, nil); err != nil {
			t.Errorf("Check(%q): %v", path, err)
		}
	}
}

func TestCheckRefusesSockets(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "s") //nolint:usetesting // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "socket")
	ln, err := net.Listen("unix", path) //nolint:noctx // closed at once
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if got := sandpit.CodeOf(hostpath.Check(path, nil)); got != sandpit.PermissionDenied {
		t.Errorf("Check(socket) = %q, want %q", got, sandpit.PermissionDenied)
	}
	if err := hostpath.Check(path, []string{path}); err != nil {
		t.Errorf("Check(socket) told twice: %v", err)
	}
}

func TestResolveFollowsLinks(t *testing.T) {
	t.Parallel()
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink("/etc", link); err != nil {
		t.Fatal(err)
	}
	got, err := hostpath.Resolve(link)
	if err != nil || got != "/etc" {
		t.Errorf("Resolve(link to /etc) = %q, %v", got, err)
	}
	if _, err := hostpath.Resolve(link + "/no-such"); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("Resolve(missing): %v, want not found", err)
	}
}
