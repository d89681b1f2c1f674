package gvisor_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestPrepareImage converts an image before a sandbox wants it.
func TestPrepareImage(t *testing.T) {
	t.Parallel()
	dir, files := t.TempDir(), t.TempDir()
	p := newProvider(t, dir)
	if err := os.WriteFile(filepath.Join(files, "hello"), []byte("hello"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := p.PrepareImage(t.Context(), sandpit.Image(files)); err != nil {
		t.Fatal(err)
	}
	if made, err := filepath.Glob(filepath.Join(dir, "images", "*")); err != nil || len(made) == 0 {
		t.Errorf("nothing was made: %v", err)
	}
	err := p.PrepareImage(t.Context(), "/no/such/directory")
	if code := sandpit.CodeOf(err); code != sandpit.NotFound {
		t.Errorf("what is not there: %v (%s)", err, code)
	}
}
