// Package testoptions completes options in tests.
package testoptions

import (
	"cmp"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
	"github.com/sandpit-dev/sandpit/internal/core/manager"
	"github.com/sandpit-dev/sandpit/provider/docker"
)

// Manager returns o with the defaults of the configuration in numbers and times that are zero.
func Manager(o manager.Options) manager.Options {
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

// Docker returns o with the defaults of the configuration in numbers and times that are zero.
func Docker(o docker.Options) docker.Options {
	c := config.Default()
	d := c.Docker
	o.Defaults = sandpit.Resources{
		Memory: cmp.Or(o.Defaults.Memory, c.Sandbox.MemoryLimit), CPUs: cmp.Or(o.Defaults.CPUs, c.Sandbox.CPULimit),
		Disk: cmp.Or(o.Defaults.Disk, c.Sandbox.DiskLimit), PIDs: cmp.Or(o.Defaults.PIDs, c.Sandbox.PIDsLimit),
	}
	o.TmpfsSize, o.ShmSize = cmp.Or(o.TmpfsSize, d.TmpfsSize), cmp.Or(o.ShmSize, d.ShmSize)
	o.OpenFiles, o.PullTimeout = cmp.Or(o.OpenFiles, int64(d.OpenFiles)), cmp.Or(o.PullTimeout, c.Image.PullTimeout)
	o.StopGrace, o.CallTimeout = cmp.Or(o.StopGrace, d.StopGrace), cmp.Or(o.CallTimeout, d.CallTimeout)
	o.Patience = cmp.Or(o.Patience, d.Patience)
	return o
}
