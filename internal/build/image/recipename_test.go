package image_test

import (
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// TestRecipeNames refuses what only recipes know, without asking a registry, and says what
// to do; and says how a built-in template comes to be.
func TestRecipeNames(t *testing.T) {
	t.Parallel()
	s, err := image.Open(t.TempDir(), image.Options{Builtins: []string{"browser"}})
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[sandpit.Image]struct {
		code sandpit.Code
		hint string
	}{
		"builtin:base":     {sandpit.Invalid, "sandpit template build builtin:base; then use the image template:base"},
		"apt:bookworm":     {sandpit.Invalid, `from = "apt:bookworm"`},
		"template:browser": {sandpit.NotFound, "sandpit template build builtin:browser"},
		"template:mine":    {sandpit.NotFound, "sandpit template build -t mine"},
	} {
		_, err := s.Resolve(t.Context(), name, nil)
		if sandpit.CodeOf(err) != want.code || !strings.Contains(sandpit.HintOf(err), want.hint) {
			t.Errorf("%s: %v (%s)", name, err, sandpit.HintOf(err))
		}
	}
}
