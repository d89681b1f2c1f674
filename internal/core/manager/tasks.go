package manager

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// tasks owns goroutines. Use newTasks; the zero value is not ready.
type tasks struct {
	ctx    context.Context //nolint:containedctx // the life of the tasks, which is no caller's
	cancel context.CancelCauseFunc

	mu     sync.Mutex
	n      int
	closed bool
	empty  chan struct{} // closed when the last one ends after close
}

// newTasks returns tasks whose contexts have the values of ctx, but do not end with it.
func newTasks(ctx context.Context) *tasks {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	return &tasks{ctx: ctx, cancel: cancel, empty: make(chan struct{})}
}

// begin counts a task that the caller runs and ends. It reports false after close.
func (t *tasks) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return false
	}
	t.n++
	return true
}

// addOne counts one more task, for a caller that runs one already.
func (t *tasks) addOne() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n++
}

func (t *tasks) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.n--
	if t.n == 0 && t.closed {
		close(t.empty)
	}
}

// start runs f in a goroutine. After close it does not, and reports false.
func (t *tasks) start(f func(ctx context.Context)) bool {
	if !t.begin() {
		return false
	}
	go func() {
		defer t.end()
		f(t.ctx)
	}()
	return true
}

// close lets no more tasks begin.
func (t *tasks) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return
	}
	t.closed = true
	if t.n == 0 {
		close(t.empty)
	}
}

// wait returns when all tasks have ended after close, or when ctx ends.
func (t *tasks) wait(ctx context.Context) error {
	select {
	case <-t.empty:
		return nil
	default:
	}
	select {
	case <-t.empty:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (t *tasks) count() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.n
}

// detach returns a context with the values of ctx that ends with the tasks and not with ctx.
func (t *tasks) detach(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })
	return ctx, func() { stop(); cancel(nil) }
}

// join returns a context that ends with ctx or with the tasks.
func (t *tasks) join(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(t.ctx, func() { cancel(context.Cause(t.ctx)) })
	return ctx, func() { stop(); cancel(nil) }
}

// returnGrace is how long a call may take to return after its context has ended. A call that heeds
// its context has returned by then.
const returnGrace = time.Second

// providerCall is a call of something that may ignore its context.
type providerCall struct {
	what  string
	limit time.Duration // 0: none but the context's
}

// providerCallKey marks the contexts of callProvider: calls of the guest with one are the server's
// own, and not a client's.
type providerCallKey struct{}

// callProvider runs f in a goroutine of t. It returns when f does, or soon after the context or the
// limit ends, whether f heeds its context or not; at the limit the error is Timeout. A result that
// comes later is passed to late, unless that is nil.
func callProvider[T any](ctx context.Context, t *tasks, r providerCall, f func(context.Context) (T, error), late func(T, error)) (T, error) {
	ctx, cancel := withLimit(context.WithValue(ctx, providerCallKey{}, true), r)
	type answer struct {
		value T
		err   error
	}
	var zero T
	var given atomic.Bool // set when it is decided whether the result is late
	answered := make(chan answer, 1)
	started := t.start(func(context.Context) {
		defer cancel()
		value, err := f(ctx)
		if given.CompareAndSwap(false, true) {
			answered <- answer{value, err}
		} else if late != nil {
			late(value, err)
		}
	})
	if !started {
		cancel()
		return zero, errClosed
	}
	select {
	case a := <-answered:
		return a.value, a.err
	case <-ctx.Done():
	}
	timer := time.NewTimer(returnGrace)
	defer timer.Stop()
	select {
	case a := <-answered:
		return a.value, causeOf(ctx, a.err)
	case <-timer.C:
	}
	if given.CompareAndSwap(false, true) {
		return zero, causeOf(ctx, ctx.Err())
	}
	a := <-answered
	return a.value, causeOf(ctx, a.err)
}

func withLimit(ctx context.Context, r providerCall) (context.Context, context.CancelFunc) {
	if r.limit == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, r.limit,
		sandpit.Errorf(sandpit.Timeout, "%s timed out after %v seconds", r.what, r.limit.Seconds()))
}

// causeOf returns err, or the cause of the context's end if err only says that it ended.
func causeOf(ctx context.Context, err error) error {
	if ctx.Err() != nil && (errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded)) {
		return context.Cause(ctx)
	}
	return err
}

// withoutResult adapts a function without a result for callProvider.
func withoutResult(f func(context.Context) error) func(context.Context) (struct{}, error) {
	return func(ctx context.Context) (struct{}, error) { return struct{}{}, f(ctx) }
}

// sleep waits for d, or returns the context's error.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
