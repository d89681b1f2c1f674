package hostpath_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/files/hostpath"
)

// FuzzPath resolves and checks paths that lead in roundabout ways to the machine.
func FuzzPath(f *testing.F) {
	dir := f.TempDir()
	for name, target := range map[string]string{"etc": "/etc", "root": "/", "up": "..", "self": "self", "own": "sub"} {
		if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
			f.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "sub"), 0o700); err != nil {
		f.Fatal(err)
	}
	for _, p := range []string{"", "sub", "own", "etc", "etc/passwd", "root/etc", "root/proc/self/root/etc", "up/../../../../etc", "self", "root/dev/null", "root/usr/../etc/."} {
		f.Add(p)
	}
	f.Fuzz(func(t *testing.T, p string) {
		resolved, err := hostpath.Resolve(dir + "/" + p)
		if err != nil {
			return
		}
		if !filepath.IsAbs(resolved) || filepath.Clean(resolved) != resolved {
			t.Fatalf("%q is %q", p, resolved)
		}
		if again, err := hostpath.Resolve(resolved); err == nil && again != resolved && !strings.HasPrefix(resolved, "/proc/") {
			t.Errorf("%q is %q, and that is %q", p, resolved, again)
		}
		if (hostpath.Rules{}).Check(resolved) != nil {
			return
		}
		for _, own := range []string{"/etc", "/proc", "/sys", "/dev", "/boot"} {
			if resolved == "/" || resolved == own || strings.HasPrefix(resolved, own+"/") {
				t.Errorf("%q is %q, and may be shown", p, resolved)
			}
		}
	})
}
