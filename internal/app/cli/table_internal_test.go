package cli

import (
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

func TestSafe(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"":                      "",
		"plain ä 世 🙂":           "plain ä 世 🙂",
		"\x1b[31mred\x1b[0m":    `\x1b[31mred\x1b[0m`,
		"a\nb\tc\r\a":           `a\nb\tc\r\a`,
		"\u202eevil\u2066":      `\u202eevil\u2066`,
		"zero\u200bwidth\ufeff": `zero\u200bwidth\ufeff`,
		"\x9b2J\xff":            `\x9b2J\xff`,
		"\u009b2J":              `\u009b2J`,
		"nb\u00a0sp":            `nb\u00a0sp`,
		"\x00\x7f":              `\x00\x7f`,
	} {
		if got := escapeText(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
	if got := escapeLines("a\n\tb\x1b"); got != "a\n\tb\\x1b" {
		t.Errorf("lines: %q", got)
	}
}

// FuzzSafe: whatever it is, it is printable, in one line, and told apart from others
// of its length by eye.
func FuzzSafe(f *testing.F) {
	f.Add("\x1b]0;title\a")
	f.Add("\u202e\xff\n")
	f.Fuzz(func(t *testing.T, text string) {
		got := escapeText(text)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r >= 0x7f && r <= 0xa0 }) {
			t.Errorf("%q became %q", text, got)
		}
		if escapeText(got) != got {
			t.Errorf("%q is not as it stays", got)
		}
	})
}

func TestTable(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	err := writeTable(&b, [][]string{{"NAME", "STATE"}, {"世界", "running"}, {"a\x1b", "x"}}, paintState)
	want := "NAME   STATE\n世界   \x1b[32mrunning\x1b[0m\na\\x1b   x\n"
	want = strings.ReplaceAll(want, "NAME   ", "NAME    ")
	want = strings.ReplaceAll(want, "世界   ", "世界    ")
	if diff := cmp.Diff(want, b.String()); diff != "" || err != nil {
		t.Errorf("%v %s", err, diff)
	}
}

func TestTimesForPeople(t *testing.T) {
	t.Parallel()
	now := time.Now()
	for want, at := range map[string]time.Time{
		"never":      {},
		"now":        now.Add(-time.Second),
		"3 h ago":    now.Add(-3*time.Hour - time.Minute),
		"in 90 min":  now.Add(90*time.Minute + 10*time.Second),
		"in 5 h":     now.Add(5*time.Hour + 5*time.Minute),
		"in 10 days": now.Add(10*24*time.Hour + time.Hour),
	} {
		if got := formatWhen(at); got != want {
			t.Errorf("%v: %q, want %q", at, got, want)
		}
	}
}

func TestPlaces(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]copyEnd{
		"a.txt":       {"", "a.txt"},
		"work:":       {"work", ""},
		"work:/a:b":   {"work", "/a:b"},
		"./a:b":       {"", "./a:b"},
		"/a:b":        {"", "/a:b"},
		"dir/a:b":     {"", "dir/a:b"},
		"..:b":        {"", "..:b"},
		":b":          {"", ":b"},
		"-":           {"", "-"},
		"s234:x/../y": {"s234", "x/../y"},
	} {
		if got := parseCopyEnd(text); got != want {
			t.Errorf("%q: %+v, want %+v", text, got, want)
		}
	}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for code, want := range map[sandpit.Code]int{
		sandpit.Invalid: 2, sandpit.NotFound: 3, sandpit.Gone: 3, sandpit.Unavailable: 4, sandpit.Unauthenticated: 5,
		sandpit.PermissionDenied: 5, sandpit.Conflict: 6, sandpit.AlreadyExists: 6, sandpit.Exhausted: 7,
		sandpit.Timeout: 124, sandpit.Internal: 125, "made up": 125,
	} {
		err := sandpit.Errorf(code, "x")
		if got := exitCodeOf(verbError{err}); got != want {
			t.Errorf("%s: %d, want %d", code, got, want)
		}
		if got := exitCodeOf(err); code != sandpit.Invalid && got != 125 {
			t.Errorf("%s of a command inside: %d, want 125", code, got)
		}
	}
}
