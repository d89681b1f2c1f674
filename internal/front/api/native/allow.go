package native

import (
	"path/filepath"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/files/hostpath"
	"github.com/sandpit-dev/sandpit/internal/front/api"
)

// allow refuses what would show files of the machine to somebody who may not see
// them, or take its ports, and resolves the paths in a spec. Administrators may insist on
// paths that are refused otherwise.
func (s *server) allow(p api.Principal, spec *sandpit.Spec, insisted []string) error {
	rules, err := s.mountRules(p, insisted)
	if err != nil {
		return err
	}
	if len(spec.Ports) > 0 && !p.Admin {
		return sandpit.WithHint(sandpit.Errorf(sandpit.PermissionDenied, "publish ports on the server's machine: this is for administrators"),
			"sandpit url gives the URL of a port without that")
	}
	if image.IsPath(string(spec.Image)) {
		if !p.Admin {
			return sandpit.WithHint(
				sandpit.Errorf(sandpit.PermissionDenied, "image %.100q is a file or directory of the server's machine", string(spec.Image)),
				"name an image of a registry")
		}
		if !filepath.IsAbs(string(spec.Image)) {
			return sandpit.Errorf(sandpit.Invalid, "image %.100q: want an absolute path on the server's machine", string(spec.Image))
		}
	}
	for i := range spec.Mounts {
		if err := spec.Mounts[i].CheckSource(); err != nil {
			return err
		}
		if spec.Mounts[i].Volume != "" { // the manager knows whose it is
			continue
		}
		if spec.Mounts[i].Temporary {
			if err := s.allowTemporary(p, spec.Mounts[i]); err != nil {
				return err
			}
			continue
		}
		resolved, err := s.mountSource(p, rules, spec.Mounts[i].Source)
		if err != nil {
			return err
		}
		spec.Mounts[i].Source = resolved
	}
	return nil
}

// allowTemporary refuses temporary directories to clients who may not have them. Where
// they are is not for clients to say.
func (s *server) allowTemporary(p api.Principal, m sandpit.Mount) error {
	if m.Source != "" {
		return sandpit.Errorf(sandpit.Invalid, "mount on %.200q: a temporary directory has no source that can be named", m.Target)
	}
	if p.Admin || s.TemporaryMounts {
		return nil
	}
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.PermissionDenied, "mount on %.200q: temporary directories of the server's machine are for administrators", m.Target),
		"use a volume, or ask an administrator to allow it with server.temporary_mounts")
}

// mountSource resolves a path of the machine that a sandbox is to see. To clients
// what is not there and what they may not see look alike.
func (s *server) mountSource(p api.Principal, rules hostpath.Rules, source string) (string, error) {
	if !filepath.IsAbs(source) {
		return "", sandpit.Errorf(sandpit.Invalid, "mount %.200q: want an absolute path on the server's machine", source)
	}
	resolved, err := hostpath.Resolve(source)
	if p.Admin {
		if err == nil {
			err = rules.Check(resolved)
		}
		if sandpit.CodeOf(err) == sandpit.PermissionDenied {
			err = sandpit.WithHint(err, "show a directory in it, or name it a second time: --allow-volume, in the API allow_paths")
		}
		return resolved, err
	}
	if err == nil {
		for _, root := range s.resolvedRoots() {
			below := resolved == root || strings.HasPrefix(resolved, strings.TrimSuffix(root, "/")+"/")
			if below && rules.Check(resolved) == nil {
				return resolved, nil
			}
		}
	}
	return "", sandpit.WithHint(
		sandpit.Errorf(sandpit.PermissionDenied, "mount %.200q: it is not in a directory that clients may have shown", source),
		"ask an administrator of the server which directories there are")
}

// mountRules say what of the machine p may have shown.
func (s *server) mountRules(p api.Principal, insisted []string) (hostpath.Rules, error) {
	rules := hostpath.Rules{Own: s.OwnPaths, Homes: s.Homes, Allowed: s.resolvedRoots()}
	if len(insisted) == 0 {
		return rules, nil
	}
	if !p.Admin {
		return rules, sandpit.Errorf(sandpit.PermissionDenied, "allow_paths: only administrators may have parts of the server's machine shown")
	}
	for _, path := range insisted {
		if !filepath.IsAbs(path) {
			return rules, sandpit.Errorf(sandpit.Invalid, "allow_paths: %.200q: want an absolute path on the server's machine", path)
		}
		resolved, err := hostpath.Resolve(path)
		if err != nil {
			return rules, err
		}
		rules.Allowed = append(rules.Allowed, resolved)
	}
	return rules, nil
}

// resolvedRoots are the directories below which clients may have others shown.
func (s *server) resolvedRoots() []string {
	var list []string
	for _, root := range s.MountRoots {
		if resolved, err := hostpath.Resolve(root); err == nil { // one that is not there has nothing in it
			list = append(list, resolved)
		}
	}
	return list
}
