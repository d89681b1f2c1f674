package endpoint

import (
	"context"
	"time"

	"github.com/cenkalti/backoff/v5"

	"github.com/sandpit-dev/sandpit/agent/model"
)

// maxDelay bounds a wait between two attempts that the vendor has not asked for.
const maxDelay = 10 * time.Second

// budget is how often, and for how long, one request may be repeated.
type budget struct {
	attempts int
	left     time.Duration
	delays   *backoff.ExponentialBackOff
}

func newBudget(c model.Calls) *budget {
	delays := backoff.NewExponentialBackOff()
	delays.InitialInterval, delays.MaxInterval = c.RetryDelay, max(maxDelay, c.RetryDelay)
	delays.Multiplier = 2
	return &budget{attempts: c.Attempts - 1, left: c.RetryTime, delays: delays}
}

// wait waits for the next attempt, after being what the vendor asked for. It returns false if the budget has no
// further attempt.
func (b *budget) wait(ctx context.Context, after time.Duration) bool {
	delay := max(b.delays.NextBackOff(), after)
	if after > 0 {
		delay = after
	}
	if b.attempts <= 0 || delay > b.left {
		return false
	}
	b.attempts--
	b.left -= delay
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
