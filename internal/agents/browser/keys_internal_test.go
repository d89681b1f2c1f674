package browser

import "testing"

// TestTyped looks at what keys write while modifiers are held.
func TestTyped(t *testing.T) {
	t.Parallel()
	const control = 2
	for name, tc := range map[string]struct {
		key        string
		held       int
		name, text string
	}{
		"a letter":             {"a", 0, "a", "a"},
		"a letter with Shift":  {"a", shift, "A", "A"},
		"a capital with Shift": {"A", shift, "A", "A"},
		"a digit with Shift":   {"1", shift, "1", "1"},
		"Enter with Shift":     {"Enter", shift, "Enter", "\r"},
		"a command":            {"a", control, "a", ""},
		"another command":      {"a", control | shift, "a", ""},
	} {
		k, err := findKey(tc.key)
		if err != nil {
			t.Fatal(err)
		}
		if got := k.withModifiers(tc.held); got.name != tc.name || got.text != tc.text {
			t.Errorf("%s: %+v, want %q that writes %q", name, got, tc.name, tc.text)
		}
	}
}
