package image

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"
)

// prefetcher fetches layers while earlier ones are unpacked.
type prefetcher struct {
	cancel  context.CancelFunc
	workers sync.WaitGroup
	layers  map[string]*prefetched // by digest
	order   []*prefetched
	from    *remote
	begin   sync.Once
	ctx     context.Context //nolint:containedctx // lives as long as one pull
}

// prefetched is a layer that is fetched or being fetched.
type prefetched struct {
	descriptor
	done chan struct{}
	file *os.File // locked against removal
	err  error
}

func newPrefetcher(ctx context.Context, from *remote, list []descriptor) *prefetcher {
	a := &prefetcher{layers: map[string]*prefetched{}, from: from}
	a.ctx, a.cancel = context.WithCancel(ctx)
	for _, d := range list {
		if a.layers[d.Digest] == nil {
			l := &prefetched{descriptor: d, done: make(chan struct{})}
			a.layers[d.Digest] = l
			a.order = append(a.order, l)
			from.progress.total += d.Size
		}
	}
	return a
}

// start starts the workers. It is called for the first layer, and not at all if another
// process has built the image meanwhile.
func (a *prefetcher) start() {
	next := make(chan *prefetched, len(a.order))
	for _, l := range a.order {
		next <- l
	}
	close(next)
	for range min(pullers, len(a.order)) {
		a.workers.Go(func() {
			for l := range next {
				l.file, l.err = a.from.fetchLayer(a.ctx, l.descriptor)
				close(l.done)
				if l.err != nil {
					a.cancel() // the image cannot be built
				}
			}
		})
	}
}

func (a *prefetcher) waitLayer(ctx context.Context, d descriptor) (*os.File, error) {
	a.begin.Do(a.start)
	l := a.layers[d.Digest]
	select {
	case <-l.done:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if errors.Is(l.err, context.Canceled) && ctx.Err() == nil { // because another layer failed
		for _, other := range a.order {
			select {
			case <-other.done:
				if other.err != nil && !errors.Is(other.err, context.Canceled) {
					return nil, other.err
				}
			default:
			}
		}
	}
	return l.file, l.err
}

// stop waits for the workers and closes what they have fetched.
func (a *prefetcher) stop() {
	a.cancel()
	a.begin.Do(func() {}) // prevents a later start
	a.workers.Wait()
	for _, l := range a.order {
		if l.file != nil {
			_ = l.file.Close() // only read
		}
	}
}

// removeLayers removes the layers that no other pull uses.
func (a *prefetcher) removeLayers() {
	for _, l := range a.order {
		if l.file != nil {
			_ = l.file.Close() // releases the lock
			l.file = nil
		}
		// Layers that are in use or cannot be removed are swept later.
		_, _ = removeIfFree(a.from.puller.cache.blobPath(a.from.origin, l.Digest), time.Time{})
	}
}
