// Package audit keeps the audit trail of a server within bounds: the oldest events are
// exported to files and then dropped from the store.
package audit

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// Trail is where the events are.
type Trail interface {
	EventSpan(ctx context.Context) (store.EventSpan, error)
	ListEvents(ctx context.Context, f store.EventFilter) ([]store.Event, error)
	DropEvents(ctx context.Context, through int64) error
}

// Options say what may stay in the trail. Trail, Clock, Log and Every are required.
type Options struct {
	Trail Trail
	Clock clock.Clock
	Log   *slog.Logger
	// Every is the time between two looks at the trail.
	Every time.Duration
	// MaxAge is how old an event may become; 0 is any age.
	MaxAge time.Duration
	// MaxBytes is how large the trail may become; 0 is any size.
	MaxBytes int64
	// Exporter takes events before they are dropped; nil: they are only dropped.
	Exporter *Exporter
}

// Pruner drops the oldest events of a trail.
type Pruner struct{ o Options }

// NewPruner returns a pruner. It does nothing before Run or Prune is called.
func NewPruner(o Options) *Pruner { return &Pruner{o} }

// Run prunes the trail at once, and then again and again until ctx ends. What fails is
// logged and tried again the next time.
func (p *Pruner) Run(ctx context.Context) {
	for {
		if err := p.Prune(ctx); err != nil && ctx.Err() == nil {
			p.o.Log.ErrorContext(ctx, "audit: prune events failed", slog.Any("error", err))
		}
		timer := p.o.Clock.NewTimer(p.o.Every)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// Prune drops events until the trail is within its bounds. An event is dropped only when
// it was exported, so that a crash at any moment loses none; at worst a file is exported
// again.
func (p *Pruner) Prune(ctx context.Context) error {
	for {
		excess, err := p.findExcess(ctx)
		if err != nil || len(excess) == 0 {
			return err
		}
		if p.o.Exporter != nil {
			if err := p.o.Exporter.Export(excess); err != nil {
				return fmt.Errorf("export events: %w", err)
			}
		}
		if err := p.o.Trail.DropEvents(ctx, excess[len(excess)-1].Seq); err != nil {
			return err
		}
	}
}

// findExcess returns the oldest events that are out of bounds, as many as one look at the
// trail returns.
func (p *Pruner) findExcess(ctx context.Context) ([]store.Event, error) {
	span, err := p.o.Trail.EventSpan(ctx)
	if err != nil || span.Start == span.End || p.o.MaxAge == 0 && (p.o.MaxBytes == 0 || span.Bytes <= p.o.MaxBytes) {
		return nil, err
	}
	events, err := p.o.Trail.ListEvents(ctx, store.EventFilter{After: span.Start, Limit: store.MaxEvents})
	if sandpit.CodeOf(err) == sandpit.Internal && len(events) > 0 {
		// Damaged events must not keep the trail growing for ever; the log names them.
		p.o.Log.ErrorContext(ctx, "audit: damaged events are not exported", slog.Any("error", err))
		err = nil
	}
	if err != nil {
		return nil, err
	}
	oldest := p.o.Clock.Now().Add(-p.o.MaxAge)
	excess := span.Bytes - p.o.MaxBytes
	for i, e := range events {
		old := p.o.MaxAge > 0 && e.At.Before(oldest)
		large := p.o.MaxBytes > 0 && excess > 0
		if !old && !large {
			return events[:i], nil
		}
		excess -= e.Size()
	}
	return events, nil
}
