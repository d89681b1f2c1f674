package gvisor

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"
)

// TestGate has a gate wait for a call, and other calls wait for the gate.
func TestGate(t *testing.T) {
	t.Parallel()
	var g gate
	left, err := g.enter(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	closed := make(chan func())
	go func() { closed <- g.close(t.Context()) }()
	var later sync.WaitGroup
	defer later.Wait()
	for !func() bool { g.mu.Lock(); defer g.mu.Unlock(); return g.reopened != nil }() {
		time.Sleep(time.Millisecond)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := g.enter(gone); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that went away: %v", err)
	}
	passed := make(chan struct{})
	later.Go(func() {
		defer close(passed)
		left, err := g.enter(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		left()
	})
	left()
	open := <-closed
	select {
	case <-passed:
		t.Error("a call has passed a closed gate")
	default:
	}
	open()
	<-passed
	g.close(t.Context())()
}
