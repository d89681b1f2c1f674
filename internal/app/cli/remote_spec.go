package cli

import (
	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// remoteFlags are the flags that describe a sandbox of a server.
type remoteFlags struct {
	name, user, workDir         string
	env, labels, volumes, ports []string
	temps                       []string
	limits                      limitFlags
}

// toSpec returns the sandbox to request from a server. Paths are not resolved on this machine,
// and this machine's configuration limits nothing there.
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

// toResources returns the limits that flags set.
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
		default: // there are no other limits
		}
	}
	return r, nil
}
