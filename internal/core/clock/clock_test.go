package clock_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/sandpit-dev/sandpit/internal/core/clock"
)

func TestSystem(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c clock.Clock = clock.System{}
		begin := c.Now()
		<-c.NewTimer(time.Hour).C
		if d := c.Now().Sub(begin); d != time.Hour || !c.Now().Equal(time.Now()) {
			t.Errorf("%v passed, want an hour", d)
		}
	})
}

func TestJumping(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clock.NewJumping()
		begin, timer := c.Now(), c.NewTimer(time.Hour)
		c.Jump(24 * time.Hour)
		c.Jump(-time.Minute)
		if d := c.Now().Sub(begin); d != 24*time.Hour-time.Minute {
			t.Errorf("jumped by %v, want a day less a minute", d)
		}
		real := time.Now()
		<-timer.C
		if d := time.Since(real); d != time.Hour {
			t.Errorf("the timer took %v, want an hour whatever the clock says", d)
		}
	})
}

func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := clock.NewJumping()
		w := clock.NewWatch(c)
		for i, step := range []struct{ sleep, jump, want time.Duration }{
			{time.Hour, 0, 0},
			{time.Second, time.Hour, time.Hour},
			{time.Second, 0, 0},
			{time.Hour, -24 * time.Hour, -24 * time.Hour},
			{0, clock.MinJump, clock.MinJump},
			{0, clock.MinJump - 1, 0},
			{0, clock.MinJump - 1, 0}, // drift does not add up
			{0, -clock.MinJump + 1, 0},
		} {
			time.Sleep(step.sleep)
			c.Jump(step.jump)
			if now, got := w.Look(); got != step.want || !now.Equal(c.Now()) {
				t.Errorf("step %d: jump %v, want %v", i, got, step.want)
			}
		}
	})
}
