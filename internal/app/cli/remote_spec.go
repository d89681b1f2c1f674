package cli

import (
	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// remoteFlags are those that say what a server's sandbox shall be.
type remoteFlags struct {
	name, user, workDir         string
	env, labels, volumes, ports []string
	temps                       []string
	limits                      limitFlags
}

// remoteSpec is what a server is asked for. Nothing of it is looked up on this
// machine, and nothing of this machine's configuration is a limit there.
func (f remoteFlags) toSpec(a *app) (sandpit.Spec, error) {
	spec := sandpit.Spec{Name: f.name, User: f.user, WorkDir: f.workDir}
	var err error
	if spec.Env, err = a.parseEnv(f.env); err != nil {
		return spec, err
	}
	if spec.Labels, err = parseLabels(f.labels); err != nil {
		return spec, err
	}
	if spec.Ports, err = parsePorts(f.ports); err != nil {
		return spec, err
	}
	for _, v := range f.volumes {
		m, err := splitVolume(v)
		if err != nil {
			return spec, err
		}
		spec.Mounts = append(spec.Mounts, m)
	}
	temps, err := parseTemporary(f.temps)
	if err != nil {
		return spec, err
	}
	spec.Mounts = append(spec.Mounts, temps...)
	spec.Resources, err = f.limits.toResources(a)
	return spec, err
}

// flagLimits are the limits that flags give, and only those.
func (l limitFlags) toResources(a *app) (sandpit.Resources, error) {
	given := l.toOverrides()
	cfg, err := a.loadConfig(given...)
	if err != nil {
		return sandpit.Resources{}, err
	}
	var r sandpit.Resources
	for _, o := range given {
		switch o.Key {
		case config.KeyMemoryLimit:
			r.Memory = cfg.Sandbox.MemoryLimit
		case config.KeyCPULimit:
			r.CPUs = cfg.Sandbox.CPULimit
		case config.KeyDiskLimit:
			r.Disk = cfg.Sandbox.DiskLimit
		case config.KeyPIDsLimit:
			r.PIDs = cfg.Sandbox.PIDsLimit
		default: // there are no other flags for limits
		}
	}
	return r, nil
}
