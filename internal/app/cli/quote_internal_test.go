package cli

import (
	"os/exec"
	"strings"
	"testing"
)

// TestShellCommand has a shell read what hints say.
func TestShellCommand(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"python3", "-c", "print(1)"}, {"a b", "", "'", `"`, "$HOME", "`x`", "\\", "*", "~", "a\nb", "ü", "#x", "!", "&&", "-v", "./a:/b:rw"},
	} {
		want := strings.Join(args, "\x01") + "\x01"
		got, err := exec.CommandContext(t.Context(), "sh", "-c", `printf '%s\001' `+shellCommand(args...)).Output()
		if err != nil || string(got) != want {
			t.Errorf("%q: %q, %v", args, got, err)
		}
	}
}

func TestNearestFlag(t *testing.T) {
	t.Parallel()
	cmd := newRun((&app{}))
	for name, want := range map[string]string{"memroy": "memory", "timeot": "timeout", "volumes": "volume", "x": "", "something": ""} {
		if got := nearestFlag(cmd, name); got != want {
			t.Errorf("nearest to --%s: %q, want %q", name, got, want)
		}
	}
}
