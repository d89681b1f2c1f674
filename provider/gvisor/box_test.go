package gvisor

import (
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// TestDialWhileDestroyed asks for a connection, and for figures, while somebody destroys
// the sandbox: both hear that it is gone, and why.
func TestDialWhileDestroyed(t *testing.T) {
	t.Parallel()
	b := newBox(sandpit.NewID(), nil)
	calls := map[string]func() error{
		"dial":  func() error { _, err := b.dial(t.Context(), 80); return err },
		"stats": func() error { _, err := b.stats(); return err },
	}
	b.mu.Lock() // as destroy has it
	errs := make(map[string]chan error)
	for name, call := range calls {
		errs[name] = make(chan error, 1)
		done := errs[name]
		go func() { done <- call() }()
	}
	time.Sleep(20 * time.Millisecond) // they wait by now, most likely
	b.end(sandpit.Exit{Reason: "the sandbox was destroyed"})
	b.mu.Unlock()
	for name, ch := range errs {
		if err := <-ch; sandpit.CodeOf(err) != sandpit.Gone || !strings.Contains(err.Error(), "the sandbox was destroyed") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
