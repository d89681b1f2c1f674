package image

import (
	"context"
	"errors"
	"os"
	"sync"
	"time"
)

// prefetcher fetches layers while the ones before are unpacked.
type prefetcher struct {
	cancel  context.CancelFunc
	workers sync.WaitGroup
	layers  map[string]*prefetched // by digest
	order   []*prefetched
	from    *remote
	begin   sync.Once
	ctx     context.Context //nolint:containedctx // lives as long as one pull
}

// prefetched is a layer that is here, or will be.
type prefetched struct {
	descriptor
	done chan struct{}
	file *os.File // locked, so that nobody removes it
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

// start is called when the first layer is wanted: not at all if another has made
// the image meanwhile.
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
					a.cancel() // the others are of no use
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
	if errors.Is(l.err, context.Canceled) && ctx.Err() == nil { // because of another one
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
	a.begin.Do(func() {}) // from now on it starts no more
	a.workers.Wait()
	for _, l := range a.order {
		if l.file != nil {
			_ = l.file.Close() // only read
		}
	}
}

// removeLayers gives the room of the layers back, but for those that others need.
func (a *prefetcher) removeLayers() {
	for _, l := range a.order {
		if l.file != nil {
			_ = l.file.Close() // gives up the lock
			l.file = nil
		}
		// What stays, because others use it or because of an error, is swept later.
		_, _ = removeIfFree(a.from.puller.cache.blobPath(a.from.origin, l.Digest), time.Time{})
	}
}
