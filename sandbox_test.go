package sandpit_test

import (
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

func TestCheckName(t *testing.T) {
	t.Parallel()
	for name, valid := range map[string]bool{
		"work": true, "a": true, "7": true, "My_box-1.2": true, "s": true, strings.Repeat("x", 63): true, "ABCDEFGHIJKLMNOPQRST": true,
		"": false, "a b": false, "a/b": false, "a:b": false, "-a": false, ".a": false, "_a": false, "näme": false, "a\n": false, "\x1b[31mred": false,
		strings.Repeat("x", 64): false, string(sandpit.NewID()): false, "abcdefghijklmnopqrst": false,
	} {
		err := sandpit.CheckName(name)
		if valid && err != nil || !valid && (sandpit.CodeOf(err) != sandpit.Invalid || sandpit.HintOf(err) == "") {
			t.Errorf("CheckName(%q): %v; want valid: %v", name, err, valid)
		}
	}
}
