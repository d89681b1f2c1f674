package applet

import (
	"strings"
	"testing"
)

func FuzzRunningAs(f *testing.F) {
	f.Add("Name:\tsleep\nState:\tS (sleeping)\nUid:\t40000\t40000\t40000\t40000\n")
	f.Add("Name:\tZ\nState:\tZ (zombie)\nUid:\t40000\t40000\t40000\t40000\n")
	f.Add("Uid")
	f.Fuzz(func(t *testing.T, status string) {
		if isRunningAs(status, 40000) && !strings.Contains(status, "40000") {
			t.Errorf("%q is a process of 40000", status)
		}
	})
}

func TestRunningAs(t *testing.T) {
	t.Parallel()
	for status, want := range map[string]bool{
		"Name:\tsleep\nState:\tS (sleeping)\nUid:\t40000\t40000\t40000\t40000\n": true,
		"Name:\tsu\nState:\tR (running)\nUid:\t40000\t0\t0\t0\n":                 true, // it was the user's before
		"Name:\tsleep\nState:\tZ (zombie)\nUid:\t40000\t40000\t40000\t40000\n":   false,
		"Name:\t40000\nState:\tS (sleeping)\nUid:\t400\t40\t0\t140000\n":         false,
		"": false,
	} {
		if got := isRunningAs(status, 40000); got != want {
			t.Errorf("%q: %t", status, got)
		}
	}
}
