package store_test

import (
	"testing"

	"github.com/sandpit-dev/sandpit"
)

// TestCheckWrite: a store that only can be read is not one that works.
func TestCheckWrite(t *testing.T) {
	t.Parallel()
	s := open(t, t.TempDir())
	if err := s.CheckWrite(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Events().VerifyEvents(t.Context()); err != nil {
		t.Errorf("it has changed something: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckWrite(t.Context()); err == nil || sandpit.CodeOf(err) == sandpit.Internal {
		t.Errorf("a closed store: %v", err)
	}
}
