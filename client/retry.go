package client

import (
	"bytes"
	"encoding/json"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"time"

	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// The bounds of requests that are repeated because the server was too busy to begin them.
const (
	maxRetryAfter = 30 * time.Second // a server that says more is believed, and not waited for
	maxBusyTries  = 10
	maxBusyWait   = time.Minute // altogether
)

// patient is a transport that repeats requests which the server has refused before it did
// anything: with 429 and a problem that says so. It waits as long as Retry-After says, and a
// little longer each time, so that many clients do not come back at the same moment. A
// request whose body cannot be sent again is not repeated.
type patient struct{ rt http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p patient) RoundTrip(r *http.Request) (*http.Response, error) {
	waited := time.Duration(0)
	for try := 1; ; try++ {
		res, err := p.rt.RoundTrip(r)
		if err != nil || res.StatusCode != http.StatusTooManyRequests || !isProblem(res) {
			return res, err
		}
		pause := busyPause(res, try)
		if pause <= 0 || try == maxBusyTries || waited+pause > maxBusyWait {
			return res, nil
		}
		again, ok := repeat(r)
		if !ok {
			return res, nil
		}
		_ = res.Body.Close() // all of it was read
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-r.Context().Done():
			timer.Stop()
			return nil, r.Context().Err()
		}
		waited += pause
		r = again
	}
}

// busyPause returns how long to wait before a request is repeated that was answered by res;
// 0: it is not to be. It leaves the body as it was.
func busyPause(res *http.Response, try int) time.Duration {
	text, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	res.Body = readCloser{io.MultiReader(bytes.NewReader(text), res.Body), res.Body}
	var problem wire.Problem
	if err != nil || json.Unmarshal(text, &problem) != nil || !problem.Retryable {
		return 0
	}
	after := retryAfterOf(res.Header, time.Now())
	if after > maxRetryAfter {
		return 0
	}
	// The longer it takes, the more clients there are, and the further apart they are to come.
	spread := min(100*time.Millisecond<<(try-1), 2*time.Second)
	return after + rand.N(spread) + time.Millisecond //nolint:gosec // it only spreads clients
}

// repeat returns the request to be sent once more, if it can be.
func repeat(r *http.Request) (*http.Request, bool) {
	again := r.Clone(r.Context())
	if r.Body == nil || r.Body == http.NoBody {
		return again, true
	}
	if r.GetBody == nil {
		return nil, false
	}
	body, err := r.GetBody()
	again.Body = body
	return again, err == nil
}

// retryAfterOf returns how long the header Retry-After says to wait: a number of seconds or
// a date. 0: it says nothing.
func retryAfterOf(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseUint(text, 10, 32); err == nil {
		return time.Duration(seconds) * time.Second
	}
	if at, err := http.ParseTime(text); err == nil {
		return max(0, at.Sub(now))
	}
	return 0
}

type readCloser struct {
	io.Reader
	io.Closer
}
