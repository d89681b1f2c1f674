package hostpath_test

import (
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/hostpath"
)

func TestCheckRefusesTheMachine(t *testing.T) {
	t.Parallel()
	for _, path := range []string{"/", "/etc", "/etc/ssl", "/proc", "/proc/sys", "/sys", "/dev", "/run", "/var", "/root", "/home"} {
		if _, err := os.Stat(path); err != nil {
			continue // not on this machine
		}
		if got := sandpit.CodeOf((hostpath.Rules{}).Check(path)); got != sandpit.PermissionDenied {
			t.Errorf("Check(%q) = %q, want %q", path, got, sandpit.PermissionDenied)
		}
		if err := (hostpath.Rules{Allowed: []string{path}}).Check(path); err != nil {
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
		if err := (hostpath.Rules{}).Check(path); err != nil {
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
	if got := sandpit.CodeOf((hostpath.Rules{}).Check(path)); got != sandpit.PermissionDenied {
		t.Errorf("Check(socket) = %q, want %q", got, sandpit.PermissionDenied)
	}
	if err := (hostpath.Rules{Allowed: []string{path}}).Check(path); err != nil {
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

func TestCheckRefusesHomes(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	for _, dir := range []string{"project/src", ".ssh", ".config/gcloud", ".local/share/keyrings", ".local/lib", "work/.ssh"} {
		if err := os.MkdirAll(filepath.Join(home, dir), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(home, ".netrc"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(home, link); err != nil {
		t.Fatal(err)
	}
	for _, given := range []string{home, link, home + "/"} { // a home may be given by a link
		rules := hostpath.Rules{Homes: []string{given}}
		for _, bad := range []string{"", "..", ".ssh", ".config", ".config/gcloud", ".netrc", ".local", ".local/share"} {
			path := filepath.Join(home, bad)
			if got := sandpit.CodeOf(rules.Check(path)); got != sandpit.PermissionDenied {
				t.Errorf("Check(%q) = %q, want %q", path, got, sandpit.PermissionDenied)
			}
			if err := (hostpath.Rules{Homes: rules.Homes, Allowed: []string{path}}).Check(path); err != nil {
				t.Errorf("Check(%q) although it is allowed: %v", path, err)
			}
		}
		for _, good := range []string{"project", "project/src", ".local/lib", "work", "work/.ssh"} {
			if err := rules.Check(filepath.Join(home, good)); err != nil {
				t.Errorf("Check(%q): %v", good, err)
			}
		}
	}
	for _, unusual := range []string{"/", "/usr", "", "relative"} {
		if err := (hostpath.Rules{Homes: []string{unusual}}).Check("/usr"); err != nil {
			t.Errorf("home %q: %v", unusual, err)
		}
	}
}

func TestCheckRefusesSandpitsOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, d := range []string{"state/sandboxes", "statement", "other"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink("state", link); err != nil {
		t.Fatal(err)
	}
	for _, own := range []string{filepath.Join(dir, "state"), link, filepath.Join(dir, "state/missing/..")} {
		rules := hostpath.Rules{Own: []string{own}}
		for _, bad := range []string{"", "state", "state/sandboxes"} {
			path := filepath.Join(dir, bad)
			if got := sandpit.CodeOf(rules.Check(path)); got != sandpit.PermissionDenied {
				t.Errorf("own %q: Check(%q) = %q, want %q", own, path, got, sandpit.PermissionDenied)
			}
		}
		for _, good := range []string{"statement", "other"} {
			if err := rules.Check(filepath.Join(dir, good)); err != nil {
				t.Errorf("own %q: Check(%q): %v", own, good, err)
			}
		}
	}
	missing := hostpath.Rules{Own: []string{filepath.Join(dir, "other/not/there")}}
	if got := sandpit.CodeOf(missing.Check(filepath.Join(dir, "other"))); got != sandpit.PermissionDenied {
		t.Errorf("a directory that will hold sandpit's own: %q", got)
	}
}
