package daemon

import (
	"cmp"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/core/audit"
	"github.com/sandpit-dev/sandpit/internal/core/clock"
	"github.com/sandpit-dev/sandpit/internal/core/store"
)

// pruneEventsEvery is the time between two looks at the size of the audit trail. An owner
// adds at most 20 events a second, some 5 MB in that time.
const pruneEventsEvery = 10 * time.Minute

// newPruner returns what keeps the audit trail within the bounds of the configuration.
func newPruner(cfg config.Config, trail *store.Events, log *slog.Logger) (*audit.Pruner, error) {
	c := cfg.Audit
	exporter, err := audit.NewExporter(cmp.Or(c.ExportDir, filepath.Join(cfg.StateDir, "audit")), c.MaxExportSize)
	if err != nil {
		return nil, err
	}
	return audit.NewPruner(audit.Options{
		Trail: trail, Clock: clock.System{}, Log: log, Every: pruneEventsEvery, MaxAge: c.MaxAge, MaxBytes: c.MaxSize, Exporter: exporter,
	}), nil
}
