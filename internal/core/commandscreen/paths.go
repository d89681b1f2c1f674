package commandscreen

import (
	"path"
	"slices"
	"strings"
)

// currentDir is the absolute directory in which a command starts, "" if it is not known.
type currentDir string

// place is what a path names, ordered by the harm of destroying it.
type place int

const (
	elsewhere place = iota
	// above is a path like "..", from an unknown directory.
	above
	// home is a home directory.
	home
	// perhapsSystem is a part of the system if an unknown value is empty.
	perhapsSystem
	// system is the root, or a directory that the system needs to work.
	system
)

// systemRoots returns the directories below / that belong to the system.
func systemRoots() []string {
	return []string{
		"bin", "boot", "dev", "etc", "home", "lib", "lib32", "lib64", "libx32",
		"proc", "root", "run", "sbin", "sys", "usr", "var",
	}
}

// systemDirs returns directories below those of systemRoots that the system needs too.
func systemDirs() []string {
	return []string{
		"/usr/bin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libexec", "/usr/sbin",
		"/usr/share", "/var/lib",
	}
}

// change returns the directory after cd with these operands.
func (d currentDir) change(operands []string) currentDir {
	switch {
	case len(operands) == 0:
		return ""
	case strings.ContainsFunc(operands[0], isMark) || operands[0] == "" || operands[0] == "-" || operands[0][0] == '~':
		return ""
	case operands[0][0] == '/':
		return currentDir(path.Clean(operands[0]))
	case d != "":
		return currentDir(path.Join(string(d), operands[0]))
	}
	return d
}

// worstPlace returns the worst place among arguments.
func (d currentDir) worstPlace(args []string) place {
	worst := elsewhere
	for _, a := range args {
		worst = max(worst, d.resolvePlace(a))
	}
	return worst
}

// resolvePlace returns what an argument names when a command starts in d.
func (d currentDir) resolvePlace(arg string) place {
	if strings.HasPrefix(arg, "~") {
		_, rest, _ := strings.Cut(arg, "/")
		if rest = path.Clean("/" + rest); rest == "/" || allWild(rest[1:]) {
			return home
		}
		return elsewhere
	}
	known := withoutMarks(strings.ReplaceAll(arg, string(isSet), "x"))
	p := d.placeKnown(known)
	if len(known) == len(arg) || strings.ContainsRune(arg, isSet) {
		return p
	}
	if p == system {
		return perhapsSystem
	}
	return elsewhere
}

// placeKnown is resolvePlace for an argument without marks.
func (d currentDir) placeKnown(arg string) place {
	switch {
	case arg == "":
		return elsewhere
	case arg[0] == '/':
	case d != "":
		arg = string(d) + "/" + arg
	default:
		return placeRelative(arg)
	}
	parts := strings.Split(strings.TrimPrefix(path.Clean(arg), "/"), "/")
	// Everything in a directory counts as the directory.
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

// placeRelative returns what a path names from an unknown directory.
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

// allWild reports whether a part of a path is a glob for almost every name: *, .*, ?*,
// .[!.]*.
func allWild(part string) bool {
	if !strings.ContainsAny(part, "*?") {
		return false
	}
	rest := strings.ReplaceAll(part, "[!.]", "?")
	rest = strings.ReplaceAll(rest, "[^.]", "?")
	return strings.Trim(rest, "*?.") == ""
}

func hasWild(arg string) bool { return strings.ContainsAny(arg, "*?[") }

// matchPart reports whether a part of a path, which may be a glob, matches a name.
func matchPart(part, name string) bool {
	if !hasWild(part) {
		return part == name
	}
	ok, err := path.Match(part, name)
	return ok && err == nil
}

// isDevice reports whether a path names a device, or the kernel's memory, where writing
// destroys a disk or the running kernel.
func (d currentDir) isDevice(arg string) bool {
	if d != "" && !strings.HasPrefix(arg, "/") {
		arg = string(d) + "/" + arg
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
