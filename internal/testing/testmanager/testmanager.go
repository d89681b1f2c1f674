// Package testmanager completes the options of managers in tests.
package testmanager

import (
	"cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
)

// Complete returns o with the defaults of the configuration in numbers and times that are zero.
func Complete(o manager.Options) manager.Options {
	c := config.Default()
	m := c.Manager
	for field, value := range map[*int]int{
		&o.MaxSandboxes: m.MaxSandboxes, &o.MaxSaved: m.MaxSaved, &o.MaxVolumes: m.MaxVolumes, &o.MaxSnapshots: m.MaxSnapshots,
		&o.MaxTemplates: m.MaxTemplates, &o.MaxBuilds: m.MaxBuilds, &o.Parallel: m.Parallel, &o.MaxRetries: c.Queue.MaxRetries,
	} {
		*field = cmp.Or(*field, value)
	}
	o.MaxSavedBytes = cmp.Or(o.MaxSavedBytes, m.MaxSavedBytes)
	o.MaxVolumeBytes = cmp.Or(o.MaxVolumeBytes, m.MaxVolumeBytes)
	o.MaxSnapshotBytes = cmp.Or(o.MaxSnapshotBytes, m.MaxSnapshotBytes)
	o.MaxTemplateBytes = cmp.Or(o.MaxTemplateBytes, m.MaxTemplateBytes)
	o.BuildTimeout, o.CreateTimeout = cmp.Or(o.BuildTimeout, m.BuildTimeout), cmp.Or(o.CreateTimeout, m.CreateTimeout)
	o.CallTimeout, o.KeepDeleted = cmp.Or(o.CallTimeout, m.CallTimeout), cmp.Or(o.KeepDeleted, m.Remember)
	o.IdleTimeout, o.Sweep = cmp.Or(o.IdleTimeout, m.IdleTimeout), cmp.Or(o.Sweep, m.CleanupInterval)
	o.IdleAction = cmp.Or(o.IdleAction, sandpit.Action(m.IdleAction))
	return o
}
