package daemon

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/front/wire"
)

// The patience of a prePuller.
const (
	prePullTries   = 10
	prePullPause   = 5 * time.Second // after the first failure; it doubles with each
	prePullLongest = 5 * time.Minute
	prePullAtOnce  = 2
)

// prePuller prepares images in the background and reports its progress.
type prePuller struct {
	log   *slog.Logger
	pause time.Duration // after the first failure
	// prepare makes one ready.
	prepare func(context.Context, sandpit.Image) error

	mu   sync.Mutex
	list []wire.PrePull
}

func newPrePuller(images []string, prepare func(context.Context, sandpit.Image) error, log *slog.Logger) *prePuller {
	p := &prePuller{log: log, pause: prePullPause, prepare: prepare}
	for _, image := range images {
		p.list = append(p.list, wire.PrePull{Image: image, State: wire.PrePullWaiting})
	}
	return p
}

// listStatus returns the status of each image.
func (p *prePuller) listStatus() []wire.PrePull {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.list)
}

func (p *prePuller) updateStatus(i int, change func(*wire.PrePull)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	change(&p.list[i])
}

// pullAll returns when all images are ready or given up, or ctx ends.
func (p *prePuller) pullAll(ctx context.Context) {
	var group sync.WaitGroup
	defer group.Wait()
	places := make(chan struct{}, prePullAtOnce)
	for i, one := range p.listStatus() {
		group.Go(func() { p.pullUntilReady(ctx, i, one.Image, places) })
	}
}

// pullUntilReady tries to make one image ready until it is, or trying is of no use.
func (p *prePuller) pullUntilReady(ctx context.Context, i int, image string, places chan struct{}) {
	pause := p.pause
	for try := 1; ; try++ {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
			return
		}
		took, err := p.tryPull(ctx, i, image, try)
		<-places
		if ctx.Err() != nil {
			return
		}
		if err == nil {
			p.updateStatus(i, func(s *wire.PrePull) { s.State, s.Error = wire.PrePullReady, "" })
			p.log.InfoContext(ctx, "pre-pull: the image is ready", slog.String("image", image), slog.Duration("took", took))
			return
		}
		final := try == prePullTries || isPermanent(err)
		p.updateStatus(i, func(s *wire.PrePull) {
			s.State, s.Error = wire.PrePullWaiting, err.Error()
			if final {
				s.State = wire.PrePullFailed
			}
		})
		attrs := []any{slog.String("image", image), slog.Int("try", try), slog.Any("error", err), slog.String("hint", sandpit.HintOf(err))}
		if final {
			p.log.ErrorContext(ctx, "an image is not ready, and that is given up", attrs...)
			return
		}
		p.log.WarnContext(ctx, "an image is not ready yet", append(attrs, slog.Duration("again_in", pause))...)
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		pause = min(2*pause, prePullLongest)
	}
}

func (p *prePuller) tryPull(ctx context.Context, i int, image string, try int) (time.Duration, error) {
	p.updateStatus(i, func(s *wire.PrePull) { s.State, s.Tries = wire.PrePullFetching, try })
	begin := time.Now()
	err := p.prepare(ctx, sandpit.Image(image))
	return time.Since(begin), err
}

// isPermanent reports whether an error will be the same the next time.
func isPermanent(err error) bool {
	code := sandpit.CodeOf(err)
	return code == sandpit.Invalid || code == sandpit.Unsupported
}

// prepareImage makes an image ready with the default provider.
func (s *service) prepareImage(ctx context.Context, image sandpit.Image) error {
	p, err := s.providers.defaultProvider().OpenProvider(ctx)
	if err != nil {
		return err
	}
	preparer, ok := sandpit.As[sandpit.ImagePreparer](p)
	if !ok {
		return sandpit.Errorf(sandpit.Unsupported, "provider %s fetches no images ahead", s.cfg.Provider)
	}
	return preparer.PrepareImage(ctx, image)
}
