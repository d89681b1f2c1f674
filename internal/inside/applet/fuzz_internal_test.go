package applet

import (
	"testing"
	"unicode/utf8"
)

func FuzzParseStat(f *testing.F) {
	f.Add("7 (a (b) c) S 1 7 7 0 -1 4194560 100 0 0 0 5 6 0 0 20 0 1 0 100 4096 12 18446744073709551615")
	f.Add("7 (")
	f.Add(")(")
	f.Fuzz(func(t *testing.T, line string) {
		info, ok := parseStat(line)
		if ok && info.Command == "" {
			t.Errorf("%q has no name: %+v", line, info)
		}
	})
}

func FuzzGlob(f *testing.F) {
	for _, seed := range []string{"**/*.go", "a/[!b]?", "{a,b}", "[", "{", "[]]", "[^\\]", "//", "**", "\x00"} {
		f.Add(seed, "a/b.go")
	}
	f.Fuzz(func(t *testing.T, pattern, name string) {
		re, err := globPattern(pattern)
		if err == nil {
			_ = re.MatchString(name)
		}
		if err != nil && !utf8.ValidString(err.Error()) && utf8.ValidString(pattern) {
			t.Errorf("%q: %v", pattern, err)
		}
	})
}

func TestGlob(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		pattern, name string
		want          bool
	}{
		{"*.go", "a.go", true},
		{"*.go", "deep/er/a.go", true},
		{"*.go", "a.gob", false},
		{"src/*.go", "src/a.go", true},
		{"src/*.go", "src/b/a.go", false},
		{"src/**/*.go", "src/a.go", true},
		{"src/**/*.go", "src/b/c/a.go", true},
		{"./src/*", "src/a", true},
		{"[ab]?", "bx", true},
		{"[!ab]?", "bx", false},
		{"{one,two}.txt", "two.txt", true},
		{"a[", "a[", true},
		{"a.b", "axb", false},
	} {
		re, err := globPattern(tt.pattern)
		if err != nil || re.MatchString(tt.name) != tt.want {
			t.Errorf("%s, %s: %v; want %t", tt.pattern, tt.name, err, tt.want)
		}
	}
}
