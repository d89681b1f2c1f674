package tool

import "testing"

// TestMaskCut cuts texts through secrets.
func TestMaskCut(t *testing.T) {
	t.Parallel()
	s := &secretSet{values: map[string]bool{"hunter2-hunter2": true, "pass-word": true}}
	for text, want := range map[string]string{
		"":                               "",
		"hunter2-hunter2":                "***",
		"ter2-hunter2 and pass-wor":      "*** and ***",
		"rd and hu":                      "rd and hu",
		"word and hunter2-hunter":        "*** and ***",
		"ord":                            "***",
		"in the middle: hunter2-hun end": "in the middle: hunter2-hun end",
	} {
		if got := s.maskCut(text, true, true); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
		if got := s.maskCut(text, false, false); got != s.maskText(text) {
			t.Errorf("%q, which was not cut: %q", text, got)
		}
	}
}
