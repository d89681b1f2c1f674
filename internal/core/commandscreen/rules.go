package commandscreen

import (
	"slices"
	"strings"
)

// applyRules checks one command against the built-in rules.
func (s *state) applyRules(name string, args []string) {
	rest := args[1:]
	if name == "mkfs" || strings.HasPrefix(name, "mkfs.") || name == "mke2fs" {
		s.makeFileSystem(args)
		return
	}
	switch name {
	case "rm":
		s.checkRemove(args)
	case "chmod", "chown", "chgrp", "chattr", "setfacl", "chcon":
		s.checkChange(name, args)
	case "dd":
		s.checkDD(args)
	case "mv":
		if p := parseOptions(rest, "tS"); s.dir.worstPlace(p.operands[:max(0, len(p.operands)-1)]) == system {
			s.addFinding(finding{Deny, "move-system", "it moves the system away"}, args)
		}
	case "find":
		s.checkFind(args)
	case "rsync":
		p := parseOptions(rest, "e")
		if n := len(p.operands); n > 0 && p.hasOption("", "delete", "delete-before", "delete-after", "delete-excluded") &&
			s.dir.worstPlace(p.operands[n-1:]) == system {
			s.addFinding(finding{Deny, "rm-root", "it deletes the system"}, args)
		}
	case "tee", "cp", "truncate", "shred", "wipefs", "blkdiscard", "install", "mkswap":
		for _, o := range parseOptions(rest, "").operands {
			s.checkWrites(o, args)
		}
	case "fdisk", "sfdisk", "gdisk", "sgdisk", "parted", "cfdisk":
		if slices.ContainsFunc(rest, s.dir.isDevice) && !parseOptions(rest, "").hasOption("l", "list", "print") {
			s.addFinding(finding{Warn, "partition", "it changes how a disk is divided"}, args)
		}
	case "kill":
		s.checkKill(args)
	default:
		s.checkHalt(name, args)
	}
}

// addPlaceFinding adds a finding for an operation on a place: denied for the system, else a
// warning.
func (s *state) addPlaceFinding(p place, rule, verb string, args []string) {
	switch p {
	case elsewhere:
	case system:
		s.addFinding(finding{Deny, rule, verb + " the system"}, args)
	case perhapsSystem:
		s.addFinding(finding{Warn, rule, verb + " the system if a variable is empty"}, args)
	case home:
		s.addFinding(finding{Warn, rule, verb + " a whole home directory"}, args)
	case above:
		s.addFinding(finding{Warn, rule, verb + " whatever is above the current directory"}, args)
	}
}

func (s *state) checkRemove(args []string) {
	p := parseOptions(args[1:], "")
	recursive := p.hasOption("rR", "recursive")
	for _, o := range p.operands {
		if recursive || hasWild(o) {
			s.addPlaceFinding(s.dir.resolvePlace(o), "rm-root", "it deletes", args)
		}
	}
}

func (s *state) checkChange(name string, args []string) {
	p := parseOptions(args[1:], "")
	operands := p.operands
	// The first operand is the mode or the owner, unless the mode began with a dash.
	dashed := name == "chmod" && strings.ContainsAny(p.short, "rwxXstugo")
	if len(operands) > 0 && !dashed && !p.hasOption("", "reference") {
		operands = operands[1:]
	}
	place := s.dir.worstPlace(operands)
	switch {
	case p.hasOption("R", "recursive"):
		s.addPlaceFinding(place, name+"-root", "it changes the rights of everything in", args)
	case place == system:
		s.addFinding(finding{Warn, name + "-root", "it changes the rights of a part of the system"}, args)
	}
}

func (s *state) makeFileSystem(args []string) {
	p := parseOptions(args[1:], "bCdEeIiJGgLMmNOoqrtTUzs")
	if len(args) == 2 && p.hasOption("", "help", "version") {
		return
	}
	f := finding{Deny, "mkfs", "it creates a new file system over the existing one"}
	if n := len(p.operands); n > 0 && !slices.ContainsFunc(p.operands, func(o string) bool {
		return strings.HasPrefix(o, "/dev/") || strings.ContainsFunc(o, isMark)
	}) {
		f = finding{Warn, "mkfs", "it creates a new file system over a file"}
	}
	s.addFinding(f, args)
}

// checkDD denies dd to devices, and from an endless source without a count.
func (s *state) checkDD(args []string) {
	var in, out string
	counted := false
	for _, a := range args[1:] {
		name, value, _ := strings.Cut(a, "=")
		switch name {
		case "if":
			in = value
		case "of":
			out = value
		case "count":
			counted = true
		}
	}
	if s.dir.isDevice(out) {
		s.addFinding(finding{Deny, "device", "it overwrites a device"}, args)
		return
	}
	if !slices.Contains([]string{"/dev/zero", "/dev/urandom", "/dev/random", "/dev/full"}, in) {
		return
	}
	if counted || out == "/dev/null" {
		if in == "/dev/zero" {
			s.addFinding(finding{Warn, "dd", "it writes zeros"}, args)
		}
		return
	}
	s.addFinding(finding{Deny, "dd", "it writes without end"}, args)
}

func (s *state) checkKill(args []string) {
	rest := args[1:]
	if len(rest) > 0 && rest[0] != "--" && strings.HasPrefix(rest[0], "-") {
		if rest[0] == "-s" || rest[0] == "-n" {
			rest = rest[min(2, len(rest)):]
		} else {
			rest = rest[1:]
		}
	}
	if slices.Contains(rest, "-1") {
		s.addFinding(finding{Warn, "kill-all", "it ends every process"}, args)
	}
}

// checkHalt warns of commands that stop the machine.
func (s *state) checkHalt(name string, args []string) {
	stops := false
	switch name {
	case "shutdown", "reboot", "halt", "poweroff", "killall5":
		stops = true
	case "init", "telinit":
		stops = len(args) > 1 && (args[1] == "0" || args[1] == "6")
	case "systemctl":
		stops = slices.ContainsFunc(args[1:], func(a string) bool {
			return slices.Contains([]string{"poweroff", "reboot", "halt", "kexec", "soft-reboot"}, a)
		})
	}
	if stops {
		s.addFinding(finding{Warn, "halt", "it stops the machine"}, args)
	}
}

// search is a call of find.
type search struct {
	starts   []string
	filtered bool // by more than the type of the files
	deletes  bool
	execs    [][]string
}

func parseFind(args []string) (f search) {
	i := 0
	for ; i < len(args); i++ {
		a := args[i]
		if a == "-D" {
			i++
			continue
		}
		if a == "-H" || a == "-L" || a == "-P" || strings.HasPrefix(a, "-O") {
			continue
		}
		if strings.HasPrefix(a, "-") || a == "(" || a == "!" {
			break
		}
		f.starts = append(f.starts, a)
	}
	if len(f.starts) == 0 {
		f.starts = []string{"."}
	}
	for i = min(i, len(args)); i < len(args); i++ {
		switch a := args[i]; {
		case a == "-delete":
			f.deletes = true
		case a == "-prune":
			f.filtered = false
		case slices.Contains([]string{"-exec", "-execdir", "-ok", "-okdir"}, a):
			end := i + 1
			for end < len(args) && args[end] != ";" && args[end] != "+" {
				end++
			}
			f.execs = append(f.execs, args[i+1:end])
			i = end
		case isFilter(a) && i+1 < len(args):
			negated := i > 0 && (args[i-1] == "!" || args[i-1] == "-not")
			f.filtered = f.filtered || (!negated && !allWild(args[i+1]))
			i++
		}
	}
	return f
}

func isFilter(a string) bool {
	return slices.Contains([]string{
		"-name", "-iname", "-path", "-ipath", "-wholename", "-regex", "-iregex", "-lname", "-user", "-group",
		"-uid", "-gid", "-size", "-perm", "-mtime", "-mmin", "-atime", "-amin", "-ctime", "-cmin", "-newer",
		"-newermt", "-inum", "-samefile", "-links", "-maxdepth",
	}, a)
}

func (s *state) checkFind(args []string) {
	f := parseFind(args[1:])
	place := s.dir.worstPlace(f.starts)
	destroys := f.deletes
	for _, inner := range f.execs {
		if len(inner) == 0 {
			continue
		}
		destroys = destroys || slices.Contains([]string{"rm", "shred", "unlink", "truncate"}, baseName(inner[0]))
		s.checkCommand(withInput(inner, f.foundArgs()), "")
	}
	switch {
	case !destroys:
	case !f.filtered:
		s.addPlaceFinding(place, "find-root", "it deletes", args)
	case place == system:
		s.addFinding(finding{Warn, "find-root", "it deletes files all over the system"}, args)
	}
}

// foundArgs returns what find finds, for the commands that it runs.
func (f search) foundArgs() string {
	if f.filtered {
		return string(isSet)
	}
	return strings.Join(f.starts, "\n")
}
