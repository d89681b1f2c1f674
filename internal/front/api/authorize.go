package api

import (
	"path/filepath"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
	"github.com/sandpit-dev/sandpit/internal/files/hostpath"
)

// HostAccess says which parts of the server's machine sandboxes may use. Every front end
// that creates sandboxes for clients checks its requests with AuthorizeSpec.
type HostAccess struct {
	// MountRoots are absolute directories of the machine. Clients may mount these and everything
	// below them. They do not limit administrators. Default: none.
	MountRoots []string
	// OwnPaths and Homes are the server's own directories and the home directory of its
	// user. Mounts show them only if an administrator names them explicitly.
	OwnPaths, Homes []string
	// TemporaryMounts lets all clients mount temporary directories of the machine. Default:
	// only administrators may.
	TemporaryMounts bool
}

// Consent is what the author of a spec may use in addition to the client's own rights.
type Consent struct {
	// Paths are paths of mounts that an administrator names explicitly, although HostAccess
	// refuses them.
	Paths []string
	// Image says that the server's configuration names the image, and not the client.
	Image bool
}

// AuthorizeSpec checks what a spec uses of the server's machine: host paths as mounts or
// image, published ports and temporary directories. It replaces the sources of mounts by
// their resolved paths. A spec that is based on a snapshot must be expanded first.
//
// PermissionDenied: p may not use it. Invalid: a path is not absolute, or a mount has no
// valid source. Administrators also get the errors of looking at a path.
func (h HostAccess) AuthorizeSpec(p Principal, spec *sandpit.Spec, c Consent) error {
	rules, err := h.mountRules(p, c.Paths)
	if err != nil {
		return err
	}
	if len(spec.Ports) > 0 && !p.Admin {
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "publish ports on the server's machine: only administrators may do this"),
			"sandpit url gives the URL of a port without publishing it")
	}
	if !c.Image {
		if err := AuthorizeImage(p, spec.Image); err != nil {
			return err
		}
	}
	for i := range spec.Mounts {
		if err := h.authorizeMount(p, rules, &spec.Mounts[i]); err != nil {
			return err
		}
	}
	return nil
}

// AuthorizeImage refuses files and directories of the server's machine as images, except to
// administrators, who must give absolute paths.
func AuthorizeImage(p Principal, name sandpit.Image) error {
	switch {
	case !image.IsPath(string(name)):
		return nil
	case !p.Admin:
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.PermissionDenied, "image %.100q is a file or directory of the server's machine", string(name)),
			"name an image of a registry")
	case !filepath.IsAbs(string(name)):
		return sandpit.Errorf(sandpit.Invalid, "image %.100q: want an absolute path on the server's machine", string(name))
	}
	return nil
}

// authorizeMount checks one mount and resolves its source.
func (h HostAccess) authorizeMount(p Principal, rules hostpath.Rules, m *sandpit.Mount) error {
	if err := m.CheckSource(); err != nil {
		return err
	}
	switch {
	case m.Volume != "": // the manager checks the owner of the volume
		return nil
	case m.Temporary:
		return h.authorizeTemporary(p, *m)
	}
	resolved, err := h.resolveSource(p, rules, m.Source)
	if err != nil {
		return err
	}
	m.Source = resolved
	return nil
}

// authorizeTemporary checks a mount of a temporary directory. Its location on the machine
// is not for clients to choose.
func (h HostAccess) authorizeTemporary(p Principal, m sandpit.Mount) error {
	if m.Source != "" {
		return sandpit.Errorf(sandpit.Invalid, "mount on %.200q: a temporary directory cannot have a source", m.Target)
	}
	if p.Admin || h.TemporaryMounts {
		return nil
	}
	return sandpit.WithHint(
		sandpit.Errorf(sandpit.PermissionDenied, "mount on %.200q: temporary directories of the server's machine are for administrators", m.Target),
		"use a volume, or ask an administrator to allow it with server.temporary_mounts")
}

// resolveSource resolves a path of the machine that is to be mounted. Clients get the same
// error for a missing path and for one that they may not mount.
func (h HostAccess) resolveSource(p Principal, rules hostpath.Rules, source string) (string, error) {
	if !filepath.IsAbs(source) {
		return "", sandpit.Errorf(sandpit.Invalid, "mount %.200q: want an absolute path on the server's machine", source)
	}
	resolved, err := hostpath.Resolve(source)
	if p.Admin {
		if err == nil {
			err = rules.Check(resolved)
		}
		if sandpit.CodeOf(err) == sandpit.PermissionDenied {
			err = sandpit.WithHint(err, "mount a directory in it, or name it a second time: --allow-volume, in the API allow_paths")
		}
		return resolved, err
	}
	if err == nil {
		for _, root := range h.resolvedRoots() {
			below := resolved == root || strings.HasPrefix(resolved, strings.TrimSuffix(root, "/")+"/")
			if below && rules.Check(resolved) == nil {
				return resolved, nil
			}
		}
	}
	return "", sandpit.WithHint(
		sandpit.Errorf(sandpit.PermissionDenied, "mount %.200q: not in a directory that clients may mount", source),
		"ask an administrator of the server for the directories that clients may mount")
}

// mountRules returns the rules for mounts of p, who names some paths explicitly.
func (h HostAccess) mountRules(p Principal, named []string) (hostpath.Rules, error) {
	rules := hostpath.Rules{Own: h.OwnPaths, Homes: h.Homes, Allowed: h.resolvedRoots()}
	if len(named) == 0 {
		return rules, nil
	}
	if !p.Admin {
		return rules, sandpit.Errorf(sandpit.PermissionDenied, "allow_paths: only administrators may name paths of the server's machine")
	}
	for _, path := range named {
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

// resolvedRoots returns MountRoots without symbolic links. Directories that do not exist
// are left out.
func (h HostAccess) resolvedRoots() []string {
	var list []string
	for _, root := range h.MountRoots {
		if resolved, err := hostpath.Resolve(root); err == nil {
			list = append(list, resolved)
		}
	}
	return list
}
