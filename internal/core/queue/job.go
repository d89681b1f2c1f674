package queue

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// job is one message in the hands of a worker.
type job struct {
	worker *Worker
	mu     sync.Mutex
	claim  Claim
}

// currentClaim returns the claim as it is now.
func (j *job) currentClaim() Claim {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.claim
}

// setClaim takes a newer claim on the same message.
func (j *job) setClaim(c Claim) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.claim = c
}

// run calls the handler and answers the claim.
func (j *job) run(ctx context.Context) {
	if ctx.Err() != nil {
		j.settleClaim(ctx, context.Cause(ctx))
		return
	}
	result := make(chan error, 1)
	go j.callHandler(ctx, result)
	j.settleClaim(ctx, j.waitForResult(ctx, result))
}

// callHandler calls the handler and survives it.
func (j *job) callHandler(ctx context.Context, result chan<- error) {
	err := sandpit.Errorf(sandpit.Internal, "the handler ended without an answer")
	defer func() {
		if p := recover(); p != nil {
			err = sandpit.Errorf(sandpit.Internal, "panic: %v", p)
			j.worker.options.Log.ErrorContext(ctx, "queue: handler panicked", slog.Any("panic", p), slog.String("stack", string(debug.Stack())))
		}
		result <- err
	}()
	err = j.worker.options.Handler(ctx, j.currentClaim().Message)
}

// waitForResult extends the claim until the handler returns, however long that takes: no
// other worker gets a message while this program works on it.
func (j *job) waitForResult(ctx context.Context, result <-chan error) error {
	every := j.worker.options.Visibility / 3
	timer := j.worker.options.Clock.NewTimer(every)
	defer timer.Stop()
	for {
		select {
		case err := <-result:
			return err
		case <-timer.C:
			j.extendClaim(ctx)
			timer.Reset(every)
		}
	}
}

// extendClaim extends the claim. When the claim is lost the handler continues: it may
// itself have canceled the message.
func (j *job) extendClaim(ctx context.Context) {
	call, end := context.WithTimeout(context.WithoutCancel(ctx), min(callLimit, j.worker.options.Visibility/3))
	defer end()
	old := j.currentClaim()
	c, err := j.worker.options.Queue.Extend(call, old, j.worker.options.Clock.Now().Add(j.worker.options.Visibility))
	if errors.Is(err, sandpit.Conflict) {
		return
	}
	if j.worker.health.reportHealth(ctx, err); err != nil {
		return // the next one may work
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.claim.Token == old.Token {
		j.claim = c
	}
}

// settleClaim reports the result to the queue. While the queue is unreachable it retries,
// because otherwise the operation would run again; once the worker must stop it tries one
// last time.
func (j *job) settleClaim(ctx context.Context, result error) {
	reply := j.chooseReply(ctx, result)
	pause := firstPause
	for last := false; ; pause = min(2*pause, lastPause) {
		call, end := context.WithTimeout(context.WithoutCancel(ctx), callLimit)
		err := reply(call, j.currentClaim())
		end()
		if errors.Is(err, sandpit.Conflict) {
			return // canceled, replaced, or claimed by another worker
		}
		j.worker.health.reportHealth(ctx, err)
		if err == nil {
			return
		}
		if last || !isTransient(err) {
			j.logger().ErrorContext(ctx, "queue: result of an operation not recorded; it will run again", slog.Any("error", err))
			return
		}
		last = !j.waitFor(ctx, pause)
	}
}

// waitFor waits for d, and reports false if the worker's time is over.
func (j *job) waitFor(ctx context.Context, d time.Duration) bool {
	timer := j.worker.options.Clock.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

func (j *job) logger() *slog.Logger {
	c := j.currentClaim()
	return j.worker.options.Log.With(slog.String("kind", string(c.Kind)), slog.String("sandbox", string(c.Sandbox)))
}

// chooseReply chooses the answer to a claim by the handler's result, and logs a
// failure.
func (j *job) chooseReply(ctx context.Context, result error) func(context.Context, Claim) error {
	w, c := j.worker, j.currentClaim()
	tell := j.logger().With(slog.Any("error", result), slog.Int("attempts", c.Attempts+1))
	switch v := classifyResult(result); {
	case v == done:
		if result != nil {
			tell.InfoContext(ctx, "queue: nothing to do")
		}
		return w.options.Queue.Complete
	case ctx.Err() != nil:
		tell.InfoContext(ctx, "queue: operation interrupted and returned to the queue")
		return func(ctx context.Context, c Claim) error {
			_, err := w.options.Queue.Extend(ctx, c, w.options.Clock.Now())
			return err
		}
	case v == hopeless || c.Attempts >= w.options.MaxRetries:
		tell.ErrorContext(ctx, "queue: operation failed permanently")
		return func(ctx context.Context, c Claim) error { return w.options.Queue.Bury(ctx, c, result.Error()) }
	default:
		delay := w.backoffAfter(c.Attempts)
		tell.WarnContext(ctx, "queue: operation failed; it will be retried", slog.Duration("in", delay))
		due := w.options.Clock.Now().Add(delay)
		return func(ctx context.Context, c Claim) error { return w.options.Queue.Retry(ctx, c, due, result.Error()) }
	}
}

// backoffAfter returns how long a message waits that had failed so often before.
func (w *Worker) backoffAfter(attempts int) time.Duration {
	delay := w.options.Backoff
	for range attempts {
		if delay >= w.options.MaxBackoff {
			break
		}
		delay *= 2
	}
	jitter := 0.8 + 0.4*rand.Float64() //nolint:gosec // It spreads load, and is no secret.
	return min(time.Duration(float64(delay)*jitter), w.options.MaxBackoff)
}

// verdict is what a handler's result means for its message.
type verdict int

const (
	done verdict = iota
	worthRetry
	hopeless
)

// classifyResult uses only codes that were set explicitly. A missing file does not mean that
// a sandbox is gone, so the codes that sandpit.CodeOf derives from errors of the standard
// library do not count.
func classifyResult(result error) verdict {
	if result == nil {
		return done
	}
	code := sandpit.Internal
	if e, ok := errors.AsType[*sandpit.Error](result); ok {
		code = e.Code
	} else if c, ok := errors.AsType[sandpit.Code](result); ok {
		code = c
	}
	switch code {
	case sandpit.NotFound, sandpit.Gone:
		return done
	case sandpit.Invalid, sandpit.Unsupported, sandpit.PermissionDenied, sandpit.Unauthenticated:
		return hopeless
	default:
		return worthRetry
	}
}

// isTransient reports whether a failure of the queue may be over soon.
func isTransient(err error) bool {
	switch sandpit.CodeOf(err) {
	case sandpit.Unavailable, sandpit.Timeout, sandpit.Exhausted:
		return true
	default:
		return false
	}
}
