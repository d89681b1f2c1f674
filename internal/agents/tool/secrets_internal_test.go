package tool

import "testing"

// TestMended cuts texts through secrets.
func TestMended(t *testing.T) {
	t.Parallel()
	s := &Session{secrets: map[string]bool{"hunter2-hunter2": true, "pass-word": true}}
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
		if got := s.maskCut(text, false, false); got != s.maskSecrets(text) {
			t.Errorf("%q, which was not cut: %q", text, got)
		}
	}
}
