package textlen_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

func TestCut(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		s    string
		max  int
		want string
	}{
		{"", 0, ""},
		{"abc", 3, "abc"},
		{"abcd", 3, "abc"},
		{"abc", 0, ""},
		{"aé", 3, "aé"},
		{"aé", 2, "a"},
		{"é", 1, ""},
		{"a€b", 3, "a"},
		{"a€b", 4, "a€"},
		{"😀😀", 7, "😀"},
		{"😀", 3, ""},
		{"a\xffb", 2, "a\xff"},
		{"\x80\x80\x80\x80\x80\x80\x80", 5, "\x80\x80\x80\x80\x80"},
	} {
		if got := textlen.Cut(tc.s, tc.max); got != tc.want {
			t.Errorf("Cut(%q, %d) = %q, want %q", tc.s, tc.max, got, tc.want)
		}
	}
}

func TestShorten(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		s    string
		max  int
		want string
	}{
		{"abc", 3, "abc"},
		{"abcd", 3, "abc..."},
		{"aé", 2, "a..."},
	} {
		if got := textlen.Shorten(tc.s, tc.max); got != tc.want {
			t.Errorf("Shorten(%q, %d) = %q, want %q", tc.s, tc.max, got, tc.want)
		}
	}
}

func FuzzCut(f *testing.F) {
	f.Add("aé€😀\xff\x80", 4)
	f.Fuzz(func(t *testing.T, s string, max int) {
		if max < 0 || max > 1<<20 {
			return
		}
		got := textlen.Cut(s, max)
		if !strings.HasPrefix(s, got) || len(got) > max || len(s) > max && len(got) <= max-utf8.UTFMax {
			t.Errorf("Cut(%q, %d) = %q", s, max, got)
		}
		if utf8.ValidString(s) && !utf8.ValidString(got) {
			t.Errorf("Cut(%q, %d) = %q: a rune is cut", s, max, got)
		}
	})
}
