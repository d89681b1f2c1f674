package mcpclient

import (
	"regexp"
	"testing"
)

// FuzzNames wants any two tools to have two names, which every client takes.
func FuzzNames(f *testing.F) {
	f.Add("a", "b__c", "a__b", "c")
	f.Add("a", "b c", "a", "b_c")
	f.Add("s", "x_0123456789", "s", "x!")
	f.Add("größe", "x", "gr_e", "x")
	f.Add("a_", "b", "a", "_b")
	valid := regexp.MustCompile(`^[A-Za-z0-9_-]{1,64}$`)
	f.Fuzz(func(t *testing.T, server, tool, otherServer, otherTool string) {
		name, other := qualifiedName(server, tool), qualifiedName(otherServer, otherTool)
		if !valid.MatchString(name) {
			t.Errorf("%q %q: %q", server, tool, name)
		}
		if same := server == otherServer && tool == otherTool; same != (name == other) {
			t.Errorf("%q %q is %q, %q %q is %q", server, tool, name, otherServer, otherTool, other)
		}
	})
}
