package tree

import (
	"path"
	"path/filepath"
	"strings"
	"testing"
)

func FuzzName(f *testing.F) {
	for _, name := range []string{
		"", ".", "./", "./a", "a/", "a//b", "a/./b", "..", "../a", "a/..", "a/../b", "/", "/a", "a\x00b", "...", "..a",
		"a/...", ".//", "././a/.", strings.Repeat("a", 256), strings.Repeat("a/", 600), strings.Repeat("ab/", 2000), "\xff",
	} {
		f.Add(name)
	}
	f.Fuzz(func(t *testing.T, name string) {
		got, err := cleanName(name)
		if err != nil {
			if len(err.Error()) > 8*maxQuotedName {
				t.Errorf("cleanName(%.100q): an error of %d bytes", name, len(err.Error()))
			}
			if filepath.IsLocal(name) && len(name) < maxPart && !strings.Contains(name, "..") && !strings.Contains(name, "\x00") {
				t.Errorf("cleanName(%q) refuses a good name: %v", name, err)
			}
			return
		}
		if want := path.Clean(name); got != want {
			t.Errorf("cleanName(%q) = %q, want %q", name, got, want)
		}
		if !filepath.IsLocal(got) || strings.HasPrefix(name, "/") || strings.Contains("/"+name+"/", "/../") || len(got) > maxName {
			t.Errorf("cleanName(%q) = %q, want it refused", name, got)
		}
		if again, err := cleanName(got); err != nil || again != got {
			t.Errorf("cleanName(%q) = %q, %v, want no change", got, again, err)
		}
		dir, base := splitName(got)
		if strings.Contains(base, "/") || path.Join(dir, base) != got {
			t.Errorf("split(%q) = %q, %q", got, dir, base)
		}
	})
}
