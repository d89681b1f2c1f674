package revocation_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/revocation"
)

var (
	errCut     = errors.New("cut")
	errExpired = errors.New("expired")
)

func TestCut(t *testing.T) {
	t.Parallel()
	l := revocation.New[string](clock.System{})
	one, releaseOne := l.Attach(t.Context(), "a", time.Time{}, nil)
	two, releaseTwo := l.Attach(t.Context(), "a", time.Now().Add(time.Hour), errExpired)
	other, releaseOther := l.Attach(t.Context(), "b", time.Time{}, nil)
	l.Cut("a", errCut)
	for _, ctx := range []context.Context{one, two} {
		if got := context.Cause(ctx); !errors.Is(got, errCut) {
			t.Errorf("cause %v, want %v", got, errCut)
		}
	}
	if other.Err() != nil {
		t.Errorf("the other right: %v", context.Cause(other))
	}
	late, releaseLate := l.Attach(t.Context(), "a", time.Time{}, nil)
	if late.Err() != nil {
		t.Errorf("attached after the cut: %v", context.Cause(late))
	}
	if n := l.Len(); n != 2 {
		t.Errorf("%d contexts, want 2", n)
	}
	for _, release := range []func(){releaseOne, releaseTwo, releaseOther, releaseLate, releaseLate} {
		release()
	}
	if n := l.Len(); n != 0 {
		t.Errorf("%d contexts are left", n)
	}
	if late.Err() == nil {
		t.Error("a context did not end at its release")
	}
}

func TestParent(t *testing.T) {
	t.Parallel()
	l := revocation.New[string](clock.System{})
	parent, end := context.WithCancelCause(t.Context())
	ctx, release := l.Attach(parent, "a", time.Time{}, nil)
	defer release()
	end(errCut)
	if got := context.Cause(ctx); !errors.Is(got, errCut) {
		t.Errorf("cause %v, want that of the parent", got)
	}
}

func TestExpiry(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := revocation.New[string](clock.System{})
		ctx, release := l.Attach(t.Context(), "a", time.Now().Add(time.Hour), errExpired)
		defer release()
		time.Sleep(time.Hour - time.Second)
		if ctx.Err() != nil {
			t.Fatal("it has ended too early")
		}
		time.Sleep(2 * time.Second)
		if got := context.Cause(ctx); !errors.Is(got, errExpired) {
			t.Errorf("cause %v, want %v", got, errExpired)
		}
		past, releasePast := l.Attach(t.Context(), "a", time.Now().Add(-time.Hour), errExpired)
		defer releasePast()
		synctest.Wait()
		if past.Err() == nil {
			t.Error("a right that has expired already keeps its context")
		}
	})
}

// TestClockSet shows that a right ends soon when the time of day jumps past its end, and
// not early when it jumps back.
func TestClockSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clock.NewJumping()
		l := revocation.New[string](c)
		ctx, release := l.Attach(t.Context(), "a", c.Now().Add(24*time.Hour), errExpired)
		defer release()
		time.Sleep(time.Hour)
		c.Jump(24 * time.Hour)
		time.Sleep(time.Minute + time.Second)
		if ctx.Err() == nil {
			t.Error("it did not end a minute after its expiry")
		}
		back, releaseBack := l.Attach(t.Context(), "a", c.Now().Add(time.Hour), errExpired)
		defer releaseBack()
		c.Jump(-24 * time.Hour)
		time.Sleep(2 * time.Hour)
		if back.Err() != nil {
			t.Error("it has ended before its time of day")
		}
	})
}
