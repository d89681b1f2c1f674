package docker

import (
	"path"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/files/hostpath"
)

var containerPattern = pattern.New(`^[0-9a-f]{64}$`)

// validateSpec returns an error for a spec that this provider can never create.
func (p *Provider) validateSpec(s sandpit.Spec) error {
	if err := s.Validate(); err != nil {
		return err
	}
	if s.Image == "" || s.Image == sandpit.HostImage {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "image %q: a docker engine cannot use this machine's own programs", sandpit.HostImage),
			"name an image, for example python:3.12-slim")
	}
	for _, m := range s.Mounts {
		if m.Subpath != "" {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "mount of volume %q on %s: this provider cannot mount a directory of a volume", m.Volume, m.Target),
				"mount the whole volume")
		}
	}
	if err := p.validateMounts(s.Mounts); err != nil {
		return err
	}
	return p.validateNetwork(s.Network)
}

// validateMounts refuses paths of the machine that must not be in sandboxes.
func (p *Provider) validateMounts(mounts []sandpit.Mount) error {
	if p.o.Mounts == AnyMounts {
		return nil
	}
	rules := hostpath.Rules{Own: []string{"/run/docker.sock", "/run/podman", "/run/containerd", "/var/lib/docker", "/var/lib/containerd", "/var/lib/containers"}}
	if socket, ok := strings.CutPrefix(p.engine.address(), "unix://"); ok {
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

// validateNetwork refuses network policies that the engine's networks cannot enforce.
func (p *Provider) validateNetwork(n sandpit.NetworkPolicy) error {
	switch {
	case len(n.Allow)+len(n.Deny) > 0:
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "a docker engine cannot enforce network rules"),
			"omit the rules, or use the provider gvisor")
	case n.Online && p.o.Network == "":
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Unsupported, "no network of the docker engine is meant for sandboxes"),
			`name one in the configuration, as docker.network = "bridge"; from there sandboxes may reach this machine and private networks, too`)
	}
	return nil
}

// networkOf returns the engine's network of a sandbox.
func (p *Provider) networkOf(s sandpit.Spec) string {
	if s.Network.Online {
		return p.o.Network
	}
	return "none"
}

// allowedCapabilities returns the capabilities that root of a container may have: the engine's
// default, and those that debuggers need.
func allowedCapabilities() []string {
	return append(rootCapabilities(), "AUDIT_WRITE", "IPC_LOCK", "MKNOD", "NET_RAW", "SETFCAP", "SETPCAP", "SYS_CHROOT", "SYS_NICE", "SYS_PTRACE")
}

func checkCapabilities(names []string) error {
	for _, name := range names {
		if !slices.Contains(allowedCapabilities(), name) {
			return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "capability %.40q is not allowed in a sandbox", name),
				"allowed: "+strings.Join(allowedCapabilities(), ", "))
		}
	}
	return nil
}

func cleanAbsolute(p string) bool {
	return path.IsAbs(p) && path.Clean(p) == p && !strings.Contains(p, "\x00")
}
