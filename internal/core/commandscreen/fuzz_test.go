package commandscreen_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/commandscreen"
)

// FuzzCheckText holds the screen to its bounds, and a verdict to its form; and
// what stands around a text must not hide it.
func FuzzCheckText(f *testing.F) {
	all := lines()
	for _, action := range slices.Sorted(maps.Keys(all)) {
		for _, line := range all[action] {
			f.Add(line)
		}
	}
	f.Fuzz(func(t *testing.T, text string) {
		begin := time.Now()
		v := commandscreen.Default().CheckText(text)
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		checkForm(t, v)
		if v.Unclear || len(text) > 4096 {
			return
		}
		if strings.Contains(text, "$") && strings.ContainsAny(text, "@*") {
			return // arguments, which a child shell is known to have none of
		}
		// A child shell runs the same; so does one with something before it.
		if again := commandscreen.Default().Check([]string{"env", "A=b", "sh", "-c", "--", text}); again.Action != v.Action {
			t.Errorf("by env and sh -c: %+v, want %+v", again, v)
		}
		if before := commandscreen.Default().CheckText("true\n" + text); before.Action != v.Action && !before.Unclear {
			t.Errorf("behind another command: %+v, want %+v", before, v)
		}
	})
}

func checkForm(t *testing.T, v commandscreen.Verdict) {
	t.Helper()
	found := v.Action != commandscreen.Allow
	if found != (v.Rule != "") || found != (v.Text != "") || (found && v.Reason == "") || found != (v.Err() != nil) {
		t.Errorf("not whole: %+v", v)
	}
	if len(v.Text) > 200 || strings.ContainsAny(v.Text, "\n\r\x1b\x00\x01\x02\x03\x04") {
		t.Errorf("text %q", v.Text)
	}
}

// FuzzQuoting weighs a command that is written in another way: each argument in
// one of several kinds of quotes, and other space between them.
func FuzzQuoting(f *testing.F) {
	for _, line := range []string{
		"rm -rf /", "rm -r -f /usr", "chmod -R 777 /", "dd if=/dev/zero of=x", "mkfs.ext4 /dev/sda", "find / -delete",
		"ls -la /", "rm -rf /workspace/x", "sudo rm -rf /etc", "timeout 5 shutdown", "kill -9 -1", "mv /usr x",
	} {
		f.Add(line, uint64(0x123456789abcdef))
	}
	f.Fuzz(func(t *testing.T, line string, how uint64) {
		args := strings.Fields(line)
		if len(args) < 2 || strings.ContainsFunc(line, func(r rune) bool { return !plain(r) }) {
			return
		}
		want := commandscreen.Default().Check(args)
		var b strings.Builder
		for _, a := range args {
			kind := how % 8
			if kind == 6 && a[0] == '-' {
				kind = 0 // it would be an option of echo
			}
			switch kind {
			case 0, 1:
				b.WriteString("'" + a + "'")
			case 2:
				b.WriteString(`"` + a + `"`)
			case 3:
				b.WriteString(`\` + a)
			case 4:
				b.WriteString(a[:1] + "''" + a[1:])
			case 5:
				b.WriteString("$'" + a + "'")
			case 6:
				b.WriteString("$(echo '" + a + "')")
			default:
				b.WriteString(`"${UNSET:-` + a + `}"`)
			}
			b.WriteString([]string{" ", "  ", "\t", " \\\n "}[how>>3%4])
			how = how>>5 | how<<59
		}
		if got := commandscreen.Default().CheckText(b.String()); got.Action != want.Action {
			t.Errorf("%q: %+v, want that of %q: %+v", b.String(), got, args, want)
		}
	})
}

// plain are the characters that mean nothing to a shell.
func plain(r rune) bool {
	return r == ' ' || r == '/' || r == '-' || r == '.' || r == '=' || r == '_' || r == ',' || r == ':' ||
		(r >= '0' && r <= '9') || (r >= 'a' && r <= 'z') || (r >= 'A' && r <= 'Z')
}
