package mcp

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestRefusalHasItsCode looks at a refused call as programs and models do.
func TestRefusalHasItsCode(t *testing.T) {
	t.Parallel()
	r := errorResult(sandpit.WithHint(sandpit.Errorf(sandpit.Conflict, "sandbox x is stopped"), "start it first"))
	text, err := json.Marshal(r)
	if err != nil || !r.IsError {
		t.Fatalf("%s, %v", text, err)
	}
	for _, want := range []string{`"ERROR: sandbox x is stopped (start it first)"`, `"problem":{"code":"conflict","message":"sandbox x is stopped","hint":"start it first"}`} {
		if !strings.Contains(string(text), want) {
			t.Errorf("got %s, want %s", text, want)
		}
	}
}
