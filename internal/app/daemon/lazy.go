package daemon

import (
	"context"
	"sync"

	"github.com/sandpit-dev/sandpit"
)

// lazy is a provider that is opened when it is needed, and each time again until that
// succeeds: what it needs may come later. The manager opens it before it asks for an ability.
type lazy struct {
	open func(context.Context) (sandpit.Provider, error)
	// used reports whether there may be sandboxes. Until then the provider is not opened.
	used func() bool

	opening chan struct{} // full while it is being opened

	mu     sync.Mutex
	inner  sandpit.Provider // nil until it is open
	closed bool
}

var _ sandpit.Provider = (*lazy)(nil)

func newLazy(open func(context.Context) (sandpit.Provider, error), used func() bool) *lazy {
	return &lazy{open: open, used: used, opening: make(chan struct{}, 1)}
}

// currentProvider returns the provider, or nil if it is not open.
func (l *lazy) currentProvider() (sandpit.Provider, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, sandpit.Errorf(sandpit.Unavailable, "the server ends")
	}
	return l.inner, nil
}

// OpenProvider returns the provider, and opens it first if need be.
func (l *lazy) OpenProvider(ctx context.Context) (sandpit.Provider, error) {
	if p, err := l.currentProvider(); p != nil || err != nil {
		return p, err
	}
	select {
	case l.opening <- struct{}{}:
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	defer func() { <-l.opening }()
	if p, err := l.currentProvider(); p != nil || err != nil {
		return p, err
	}
	p, err := l.open(ctx)
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inner = p
	return p, nil
}

// checkProvider reports why no sandboxes can be made now, if so.
func (l *lazy) checkProvider(ctx context.Context) error {
	p, err := l.OpenProvider(ctx)
	if err != nil {
		return err
	}
	if c, ok := sandpit.As[interface {
		Check(ctx context.Context) error
	}](p); ok {
		return c.Check(ctx)
	}
	_, err = p.List(ctx)
	return err
}

// Create implements sandpit.Provider.
func (l *lazy) Create(ctx context.Context, id sandpit.ID, spec sandpit.Spec) (sandpit.Instance, error) {
	p, err := l.OpenProvider(ctx)
	if err != nil {
		return nil, err
	}
	return p.Create(ctx, id, spec)
}

// List implements sandpit.Provider.
func (l *lazy) List(ctx context.Context) ([]sandpit.Placement, error) {
	if p, err := l.currentProvider(); p == nil && err == nil && !l.used() {
		return nil, nil
	}
	p, err := l.OpenProvider(ctx)
	if err != nil {
		return nil, err
	}
	return p.List(ctx)
}

// Attach implements sandpit.Provider.
func (l *lazy) Attach(ctx context.Context, handle []byte) (sandpit.Instance, error) {
	p, err := l.OpenProvider(ctx)
	if err != nil {
		return nil, err
	}
	return p.Attach(ctx, handle)
}

// Close implements sandpit.Provider. It waits for a concurrent open.
func (l *lazy) Close() error {
	l.opening <- struct{}{}
	defer func() { <-l.opening }()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.inner == nil {
		return nil
	}
	return l.inner.Close()
}

// Unwrap shows sandpit.As what is inside, once there is something.
func (l *lazy) Unwrap() any {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inner == nil {
		return nil
	}
	return l.inner
}
