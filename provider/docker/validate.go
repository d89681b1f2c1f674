package docker

import (
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/hostpath"
)

var containerPattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// validateSpec refuses what can never work, before anything is made.
func (p *Provider) validateSpec(s sandpit.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if s.Image == "" || s.Image == sandpit.HostImage {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "the image %q is this machine's own programs, which a docker engine has not", sandpit.HostImage),
			"name an image, for example python:3.12-slim")
	}
	if err := p.validateMounts(s.Mounts); err != nil {
		return err
	}
	return p.validateNetwork(s.Network)
}

// validateMounts refuses paths of the machine that sandboxes are not to have.
func (p *Provider) validateMounts(mounts []sandpit.Mount) error {
	if p.o.Mounts == AnyMounts {
		return nil
	}
	rules := hostpath.Rules{Own: []string{"/run/docker.sock", "/run/podman", "/run/containerd", "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers"}}
	if socket, ok := strings.CutPrefix(p.engineHost(), "unix://"); ok {
		rules.Own = append(rules.Own, socket)
	}
	if !p.o.Ephemeral {
		rules.Own = append(rules.Own, p.o.StateDir)
	}
	for _, m := range mounts {
		if m.Volume != "" {
			continue
		}
		if reason := rules.Reason(m.Source); reason != "" {
			return sandpit.Errorf(sandpit.PermissionDenied, "mount %q: it is %s", m.Source, reason)
		}
	}
	return nil
}

// validateNetwork refuses what the engine's networks do not enforce.
func (p *Provider) validateNetwork(n sandpit.NetworkPolicy) error {
	switch {
	case len(n.Allow)+len(n.Deny) > 0:
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "a docker engine enforces no rules of what a sandbox may reach"),
			"leave the rules out, or have provider gvisor make the sandbox")
	case n.Online && p.o.Network == "":
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "no network of the docker engine is meant for sandboxes"),
			`name one in the configuration, as docker.network = "bridge"; from there sandboxes may reach this machine and private networks, too`)
	}
	return nil
}

// networkOf is the engine's network that a sandbox is in.
func (p *Provider) networkOf(s sandpit.Spec) string {
	if s.Network.Online {
		return p.o.Network
	}
	return "none"
}

// allowedCapabilities are capabilities that can be given to root of a container: the engine's own
// choice, and what debuggers need.
func allowedCapabilities() []string {
	return append(rootCapabilities(), "AUDIT_WRITE", "IPC_LOCK", "MKNOD", "NET_RAW", "SETFCAP", "SETPCAP", "SYS_CHROOT", "SYS_NICE", "SYS_PTRACE")
}

func checkCapabilities(names []string) error {
	for _, name := range names {
		if !slices.Contains(allowedCapabilities(), name) {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "capability %.40q: a sandbox does not get it", name),
				"possible are "+strings.Join(allowedCapabilities(), ", "))
		}
	}
	return nil
}

func cleanAbsolute(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.Contains(p, "\x00")
}
