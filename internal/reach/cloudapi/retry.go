package cloudapi

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"syscall"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// repeat sends a call until it succeeds, cannot be repeated, or its budget is used up.
func (c *Client) repeat(ctx context.Context, call Call, body []byte) (Response, error) {
	begin := time.Now()
	uncertain := false
	for attempt := 1; ; attempt++ {
		response, failed := c.attempt(ctx, call, body)
		if failed == nil {
			return response, nil
		}
		uncertain = uncertain || failed.uncertain
		delay := c.delayBefore(attempt, failed.after)
		left := c.o.Budget - time.Since(begin)
		if !failed.repeat || attempt >= c.o.Attempts || delay > left || failed.unreachable && attempt >= dialAttempts {
			return Response{}, markUncertain(failed.err, uncertain)
		}
		select {
		case <-time.After(delay):
		case <-ctx.Done():
			return Response{}, markUncertain(errors.Join(context.Cause(ctx), failed.err), uncertain)
		}
	}
}

// delayBefore returns the delay before the next attempt: at least what the API demands, else
// exponential, each with up to half as much again, so that clients do not return at the same time.
func (c *Client) delayBefore(attempt int, demanded time.Duration) time.Duration {
	delay := demanded
	if delay == 0 {
		delay = min(c.o.Backoff<<min(attempt-1, 20), c.o.MaxBackoff)
	}
	return delay + rand.N(delay/2+1) //nolint:gosec // it is not a secret
}

// failure is a failed attempt.
type failure struct {
	err error
	// repeat says that another attempt is safe and may help.
	repeat bool
	// after is the delay that the API demands. Zero: none.
	after time.Duration
	// uncertain says that the API may have carried out the attempt.
	uncertain bool
	// unreachable says that there was no connection.
	unreachable bool
}

// dialAttempts bounds attempts without a connection: such a host seldom returns within seconds, and
// another provider may be waiting for the request.
const dialAttempts = 3

// attempt sends a call once.
func (c *Client) attempt(ctx context.Context, call Call, body []byte) (Response, *failure) {
	if ctx.Err() != nil {
		return Response{}, &failure{err: context.Cause(ctx)}
	}
	timeout := call.Timeout
	if timeout == 0 {
		timeout = c.o.Timeout
	}
	limited, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	r, err := c.newRequest(limited, call, body)
	if err != nil {
		return Response{}, &failure{err: err}
	}
	res, err := c.http.Do(r)
	if err != nil {
		return Response{}, c.connectionFailure(ctx, call, timeout, err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(io.LimitReader(res.Body, maxBody+1))
	if err != nil {
		return Response{}, c.connectionFailure(ctx, call, timeout, err)
	}
	return c.readResponse(call, res, data)
}

// connectionFailure describes an attempt without a complete response.
func (c *Client) connectionFailure(ctx context.Context, call Call, timeout time.Duration, err error) *failure {
	if ctx.Err() != nil {
		return &failure{err: context.Cause(ctx), uncertain: true}
	}
	never := isNeverSent(err)
	f := &failure{uncertain: !never, repeat: never || call.isRepeatable(), unreachable: never}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		f.err = sandpit.WithRetry(sandpit.Errorf(sandpit.Timeout, "%s: %s did not answer within %v", c.describe(call), c.base.Host, timeout), 0)
	case isCertificate(err):
		f.repeat, f.uncertain = false, false
		f.err = sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "%s: %s cannot be trusted: %s", c.describe(call), c.base.Host, c.clean(err.Error())),
			"check the URL of the API, and the certificates of this machine")
	default:
		f.err = sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "%s: cannot reach %s: %s", c.describe(call), c.base.Host, c.clean(causeOf(err))),
			"check the URL of the API, and the network of this machine")
	}
	return f
}

// isNeverSent reports whether no server received the request.
func isNeverSent(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || isDial(err)
}

// retryAfter returns the delay in a header: a number of seconds or a date. Zero: no header.
func retryAfter(h http.Header) time.Duration {
	text := h.Get("Retry-After")
	if n, err := strconv.ParseInt(text, 10, 32); err == nil {
		return max(0, time.Duration(n)*time.Second)
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, time.Until(at))
	}
	return 0
}
