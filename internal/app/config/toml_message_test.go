package config_test

import (
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// TestTOMLMessages says what is wrong where it is, and repeats nothing of the file.
func TestTOMLMessages(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"[server\n":              `:1: not valid TOML: expected '.' or ']' to end table name, but got '\n' instead`,
		"url = 'http://x'\n[a\n": `:2: not valid TOML: expected '.' or ']' to end table name, but got '\n' instead`,
		"a = hunter2-secret\n":   `:1: not valid TOML: `,
	} {
		_, err := config.Load(config.Options{
			File: "bad.toml", UID: 1000, Home: "/home/u", ReadFile: func(string) ([]byte, error) { return []byte(text), nil },
		})
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v; want %q in it", text, err, want)
		}
	}
}
