package tool

import (
	"os/exec"
	"strings"
	"testing"
)

func FuzzParseStatus(f *testing.F) {
	f.Add("# branch.head main\x00# branch.ab +1 -2\x001 M. N... 100644 100644 100644 a b name with space\x002 R. N... 1 1 1 a b R100 new\x00old\x00? x\x00")
	f.Add("u \x00# \x001")
	f.Fuzz(func(t *testing.T, out string) {
		status := parseStatus(out)
		files := len(status.Staged) + len(status.Unstaged) + len(status.Untracked) + len(status.Conflicts)
		if records := strings.Count(out, "\x00") + 1; files > 2*records || status.Clean != (files == 0) {
			t.Errorf("%q: %d files in %d records, clean: %t", out, files, records, status.Clean)
		}
		if text := status.toText(); !strings.HasPrefix(text, "On "+status.Branch) || status.Clean != strings.HasSuffix(text, "\nnothing to commit") && files == 0 {
			t.Errorf("%q: %q", out, text)
		}
	})
}

// FuzzQuote has a shell say a word back.
func FuzzQuote(f *testing.F) {
	for _, seed := range []string{"", "it's", "$(id)", "`id`", "a\nb", `\`, "-n", "'\"'"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, word string) {
		if strings.IndexByte(word, 0) >= 0 {
			return
		}
		out, err := exec.CommandContext(t.Context(), "/bin/sh", "-c", "printf %s "+quoteWord(word)).Output()
		if err != nil || string(out) != word {
			t.Errorf("%q: %q, %v", word, out, err)
		}
	})
}
