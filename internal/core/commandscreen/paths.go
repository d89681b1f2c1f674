package commandscreen

import (
	"path"
	"slices"
	"strings"
)

// place says what a path names, as far as destroying it goes.
type place int

const (
	elsewhere place = iota
	// above is ".." and the like, from an unknown directory.
	above
	// home is a home directory.
	home
	// perhapsSystem would be a part of the system if something not known were
	// empty.
	perhapsSystem
	// system is the root, or a directory that a system cannot do without.
	system
)

// systemRoots returns the directories below / that belong to the system.
func systemRoots() []string {
	return []string{
		"bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32",
		"proc", "root", "run", "sbin", "sys", "usr", "var",
	}
}

// systemDirs are directories below those that it cannot do without either.
func systemDirs() []string {
	return []string{
		"/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/sbin",
		"/usr/share", "/var/lib",
	}
}

// resolvePlace returns what an argument names for the current directory.
func (s *state) resolvePlace(arg string) place {
	if strings.HasPrefix(arg, "~") {
		_, rest, _ := strings.Cut(arg, "/")
		if rest = path.Clean("/" + rest); rest == "/" || allWild(rest[1:]) {
			return home
		}
		return elsewhere
	}
	known := withoutMarks(strings.ReplaceAll(arg, string(isSet), "x"))
	p := s.placeKnown(known)
	if len(known) == len(arg) || strings.ContainsRune(arg, isSet) {
		return p
	}
	if p == system {
		return perhapsSystem
	}
	return elsewhere
}

func (s *state) placeKnown(arg string) place {
	switch {
	case arg == "":
		return elsewhere
	case arg[0] == '/':
	case s.dir != "":
		arg = s.dir + "/" + arg
	default:
		return placeRelative(arg)
	}
	parts := strings.Split(strings.TrimPrefix(path.Clean(arg), "/"), "/")
	// Everything in a directory is as good as the directory.
	for len(parts) > 0 && (parts[len(parts)-1] == "" || allWild(parts[len(parts)-1])) {
		parts = parts[:len(parts)-1]
	}
	switch len(parts) {
	case 0:
		return system
	case 1:
		if slices.ContainsFunc(systemRoots(), func(r string) bool { return matchPart(parts[0], r) }) {
			return system
		}
	case 2:
		if slices.Contains(systemDirs(), "/"+parts[0]+"/"+parts[1]) {
			return system
		}
	}
	return elsewhere
}

// placeRelative is for a path from a directory that is not known.
func placeRelative(arg string) place {
	ups := 0
	for part := range strings.SplitSeq(path.Clean(arg), "/") {
		switch {
		case part == "..":
			ups++
		case !allWild(part):
			return elsewhere
		}
	}
	if ups > 0 {
		return above
	}
	return elsewhere
}

// allWild reports whether a part of a path is a glob that leaves nothing out to
// speak of: *, .*, ?*, .[!.]*.
func allWild(part string) bool {
	if !strings.ContainsAny(part, "*?") {
		return false
	}
	rest := strings.ReplaceAll(part, "[!.]", "?")
	rest = strings.ReplaceAll(rest, "[^.]", "?")
	return strings.Trim(rest, "*?.") == ""
}

func hasWild(arg string) bool { return strings.ContainsAny(arg, "*?[") }

// matchPart matches a part of a path, which may be a glob, with a name.
func matchPart(part, name string) bool {
	if !hasWild(part) {
		return part == name
	}
	ok, err := path.Match(part, name)
	return ok && err == nil
}

// isDevice reports whether a path names a device or the like, writing to which
// destroys a disk or the running kernel.
func (s *state) isDevice(arg string) bool {
	if s.dir != "" && !strings.HasPrefix(arg, "/") {
		arg = s.dir + "/" + arg
	}
	name, ok := strings.CutPrefix(path.Clean(arg), "/dev/")
	if !ok {
		return false
	}
	first, _, nested := strings.Cut(name, "/")
	if nested {
		return slices.Contains([]string{"disk", "mapper", "block", "md"}, first)
	}
	for _, prefix := range []string{
		"sd", "hd", "vd", "xvd", "nvme", "mmcblk", "dm-", "md", "loop", "sr", "nbd", "ram", "mtd", "ubi",
	} {
		rest, ok := strings.CutPrefix(name, prefix)
		if ok && rest != "" && !strings.ContainsAny(rest, "-_.") {
			return true
		}
	}
	return slices.Contains([]string{"mem", "kmem", "port"}, name)
}
