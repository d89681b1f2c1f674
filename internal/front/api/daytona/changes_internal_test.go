package daytona

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// TestChanges responds after the wait or when the client disconnects, and lets the change
// continue.
func TestChanges(t *testing.T) {
	t.Parallel()
	h := newChanges(10 * time.Millisecond)
	failure := errors.New("failed")
	if err := h.run(t.Context(), func(context.Context) error { return failure }); !errors.Is(err, failure) {
		t.Errorf("a change that fails: %v", err)
	}
	end, done := make(chan struct{}), make(chan error, 2)
	slow := func(ctx context.Context) error {
		<-end
		done <- ctx.Err()
		return failure
	}
	if err := h.run(t.Context(), slow); err != nil {
		t.Errorf("a slow change: %v", err)
	}
	gone := errors.New("the client has disconnected")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(gone)
	if err := h.run(ctx, slow); err != nil && !errors.Is(err, gone) {
		t.Errorf("without a client: %v", err)
	}
	close(end)
	for range 2 {
		if err := <-done; err != nil {
			t.Errorf("the change was interrupted: %v", err)
		}
	}
	interrupted := make(chan struct{})
	if err := h.run(t.Context(), func(ctx context.Context) error {
		<-ctx.Done()
		close(interrupted)
		return ctx.Err()
	}); err != nil {
		t.Errorf("a change that does not end: %v", err)
	}
	h.close()
	<-interrupted
	if err := h.run(t.Context(), func(context.Context) error { return nil }); !errors.Is(err, api.ErrDraining) {
		t.Errorf("after the end: %v", err)
	}
}
