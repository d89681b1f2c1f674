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
	maxRetryAfter = 30 * time.Second // a longer delay is returned to the caller
	maxBusyTries  = 10
	maxBusyWait   = time.Minute // in total
)

// retryTransport repeats requests that the server refused before it did anything: with 429 and a
// problem that is retryable. It waits as long as Retry-After says, and a little longer each time,
// so that many clients do not return at the same moment. A request whose body cannot be sent
// again is not repeated.
type retryTransport struct{ rt http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (p retryTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	waited := time.Duration(0)
	for try := 1; ; try++ {
		res, err := p.rt.RoundTrip(r)
		if err != nil || res.StatusCode != http.StatusTooManyRequests || !isProblem(res) {
			return res, err
		}
		pause := retryDelay(res, try)
		if pause <= 0 || try == maxBusyTries || waited+pause > maxBusyWait {
			return res, nil
		}
		again, ok := cloneRequest(r)
		if !ok {
			return res, nil
		}
		_ = res.Body.Close() // it was read to its end
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

// retryDelay returns the delay before a refused request is repeated; 0 means not to repeat it. It
// leaves the response's body readable.
func retryDelay(res *http.Response, try int) time.Duration {
	text, err := io.ReadAll(io.LimitReader(res.Body, maxProblem))
	res.Body = readCloser{io.MultiReader(bytes.NewReader(text), res.Body), res.Body}
	var problem wire.Problem
	if err != nil || json.Unmarshal(text, &problem) != nil || !problem.Retryable {
		return 0
	}
	after := parseRetryAfter(res.Header, time.Now())
	if after > maxRetryAfter {
		return 0
	}
	// The more attempts fail, the more clients are waiting, and the further apart they retry.
	spread := min(100*time.Millisecond<<(try-1), 2*time.Second)
	return after + rand.N(spread) + time.Millisecond //nolint:gosec // not a secret
}

// cloneRequest returns the request to send again, if its body can be sent again.
func cloneRequest(r *http.Request) (*http.Request, bool) {
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

// parseRetryAfter returns the delay in the header Retry-After: a number of seconds or a date. 0
// means none.
func parseRetryAfter(h http.Header, now time.Time) time.Duration {
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
