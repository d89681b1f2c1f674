package docker

import (
	"context"
	"sync"
)

// lifetime ends all contexts that are bound to it.
type lifetime struct {
	over chan struct{} // closed at the end

	mu    sync.Mutex
	why   error // the cause of the end
	calls map[*bound]bool
}

// bound is a context that is bound to a lifetime.
type bound struct{ cancel context.CancelCauseFunc }

func newLifetime() *lifetime {
	return &lifetime{over: make(chan struct{}), calls: make(map[*bound]bool)}
}

// bindContext returns a context that also ends with the lifetime, with the lifetime's cause.
func (l *lifetime) bindContext(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		cancel(l.why)
		return ctx, func() {}
	}
	one := &bound{cancel}
	l.calls[one] = true
	return ctx, func() {
		l.mu.Lock()
		delete(l.calls, one)
		l.mu.Unlock()
		cancel(nil)
	}
}

// endLifetime ends the lifetime and all contexts that are bound to it.
func (l *lifetime) endLifetime(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return
	}
	l.why = why
	close(l.over)
	for one := range l.calls {
		one.cancel(why)
	}
	clear(l.calls)
}

// isOver reports whether the lifetime has ended.
func (l *lifetime) isOver() bool {
	select {
	case <-l.over:
		return true
	default:
		return false
	}
}
