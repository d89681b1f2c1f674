package daemon

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit/internal/audit"
	"github.com/sandpit-dev/sandpit/internal/clock"
	"github.com/sandpit-dev/sandpit/internal/config"
	"github.com/sandpit-dev/sandpit/internal/store"
)

// pruneEventsEvery is the time between two looks at the size of the audit trail. An owner
// adds at most 20 events a second, some 5 MB in that time.
const pruneEventsEvery = 10 * time.Minute

// auditing keeps the audit trail within its bounds until it is stopped.
type auditing struct {
	cancel context.CancelFunc
	worker sync.WaitGroup
}

func startAuditing(ctx context.Context, cfg config.Config, trail *store.Store, log *slog.Logger) (*auditing, error) {
	c := cfg.Audit
	exporter, err := audit.NewExporter(cmp.Or(c.ExportDir, filepath.Join(cfg.StateDir, "audit")), c.MaxExportSize)
	if err != nil {
		return nil, err
	}
	pruner := audit.NewPruner(audit.Options{
		Trail: trail, Clock: clock.System{}, Log: log, Every: pruneEventsEvery, MaxAge: c.MaxAge, MaxBytes: c.MaxSize, Exporter: exporter,
	})
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	a := &auditing{cancel: cancel}
	a.worker.Go(func() { pruner.Run(ctx) })
	return a, nil
}

// stop ends the pruning and waits for it.
func (a *auditing) stop() {
	a.cancel()
	a.worker.Wait()
}
