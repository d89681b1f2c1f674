package daemon

import (
	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/template"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona"
	"github.com/sandpit-dev/sandpit/internal/front/api/daytona/toolbox"
)

// daytonaOptions say what Daytona's clients find here.
func (s *service) daytonaOptions() daytona.Options {
	return daytona.Options{
		Manager: s.manager, Keys: s.keys, Uploads: s.uploads, Previews: s.gateway, SSH: daytona.SSH{Tokens: s.sshTokens, Where: s.whereSSH},
		ParseDockerfile: func(text []byte) (sandpit.Recipe, error) { return template.ParseDockerfile(text, nil) },
		Limits: sandpit.Resources{
			Memory: s.cfg.Sandbox.MemoryLimit, CPUs: s.cfg.Sandbox.CPULimit, Disk: s.cfg.Sandbox.DiskLimit, PIDs: s.cfg.Sandbox.PIDsLimit,
		},
		Internet: s.cfg.E2B.Internet, HostAccess: s.hostAccess(), Pending: s.store.PendingSandboxes(), Log: s.log, Version: ReadVersions().Sandpit, MaxBody: s.cfg.Server.MaxBody,
	}
}

// toolboxOptions say what Daytona's clients find below the address of a sandbox's toolbox.
func (s *service) toolboxOptions() toolbox.Options {
	return toolbox.Options{
		Manager: s.manager, Admit: s.gateway.AdmitToolbox, AdmitSigned: s.gateway.AdmitSignedToolbox, Memory: s.memory,
		CommandTimeout: s.cfg.CommandTimeout(0), Version: ReadVersions().Sandpit, Log: s.log,
	}
}
