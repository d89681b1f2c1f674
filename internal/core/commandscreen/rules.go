package commandscreen

import (
	"slices"
	"strings"
)

// ruleChecker applies rules to single commands, and does not look at what these run in turn.
type ruleChecker struct {
	*findings

	policy Policy
	dir    currentDir
}

// rules returns the rules for a command in the current directory.
func (s *state) rules() ruleChecker { return ruleChecker{&s.findings, s.policy, s.dir} }

// check checks one command: against the built-in rules if none of the user's matches it.
func (c ruleChecker) check(name string, args []string) {
	if !c.checkUser(name, args) && !c.policy.NoBuiltin {
		c.checkBuiltin(name, args)
	}
}

// checkBuiltin checks one command against the built-in rules.
func (c ruleChecker) checkBuiltin(name string, args []string) {
	rest := args[1:]
	if name == "mkfs" || strings.HasPrefix(name, "mkfs.") || name == "mke2fs" {
		c.checkMakeFileSystem(args)
		return
	}
	switch name {
	case "rm":
		c.checkRemove(args)
	case "chmod", "chown", "chgrp", "chattr", "setfacl", "chcon":
		c.checkChange(name, args)
	case "dd":
		c.checkDD(args)
	case "mv":
		if p := parseOptions(rest, "tS"); c.dir.worstPlace(p.operands[:max(0, len(p.operands)-1)]) == system {
			c.addFinding(finding{Deny, "move-system", "it moves the system away"}, args)
		}
	case "find":
		c.checkFind(args)
	case "rsync":
		p := parseOptions(rest, "e")
		if n := len(p.operands); n > 0 && p.hasOption("", "delete", "delete-before", "delete-after", "delete-excluded") &&
			c.dir.worstPlace(p.operands[n-1:]) == system {
			c.addFinding(finding{Deny, "rm-root", "it deletes the system"}, args)
		}
	case "tee", "cp", "truncate", "shred", "wipefs", "blkdiscard", "install", "mkswap":
		for _, o := range parseOptions(rest, "").operands {
			c.checkWrites(o, args)
		}
	case "fdisk", "sfdisk", "gdisk", "sgdisk", "parted", "cfdisk":
		if slices.ContainsFunc(rest, c.dir.isDevice) && !parseOptions(rest, "").hasOption("l", "list", "print") {
			c.addFinding(finding{Warn, "partition", "it changes how a disk is divided"}, args)
		}
	case "kill":
		c.checkKill(args)
	default:
		c.checkHalt(name, args)
	}
}

// addPlaceFinding adds a finding for an operation on a place: denied for the system, else a
// warning.
func (c ruleChecker) addPlaceFinding(p place, rule, verb string, args []string) {
	switch p {
	case elsewhere:
	case system:
		c.addFinding(finding{Deny, rule, verb + " the system"}, args)
	case perhapsSystem:
		c.addFinding(finding{Warn, rule, verb + " the system if a variable is empty"}, args)
	case home:
		c.addFinding(finding{Warn, rule, verb + " a whole home directory"}, args)
	case above:
		c.addFinding(finding{Warn, rule, verb + " whatever is above the current directory"}, args)
	}
}

func (c ruleChecker) checkRemove(args []string) {
	p := parseOptions(args[1:], "")
	recursive := p.hasOption("rR", "recursive")
	for _, o := range p.operands {
		if recursive || hasWild(o) {
			c.addPlaceFinding(c.dir.resolvePlace(o), "rm-root", "it deletes", args)
		}
	}
}

func (c ruleChecker) checkChange(name string, args []string) {
	p := parseOptions(args[1:], "")
	operands := p.operands
	// The first operand is the mode or the owner, unless the mode began with a dash.
	dashed := name == "chmod" && strings.ContainsAny(p.short, "rwxXstugo")
	if len(operands) > 0 && !dashed && !p.hasOption("", "reference") {
		operands = operands[1:]
	}
	place := c.dir.worstPlace(operands)
	switch {
	case p.hasOption("R", "recursive"):
		c.addPlaceFinding(place, name+"-root", "it changes the rights of everything in", args)
	case place == system:
		c.addFinding(finding{Warn, name + "-root", "it changes the rights of a part of the system"}, args)
	}
}

func (c ruleChecker) checkMakeFileSystem(args []string) {
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
	c.addFinding(f, args)
}

// checkDD denies dd to devices, and from an endless source without a count.
func (c ruleChecker) checkDD(args []string) {
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
	if c.dir.isDevice(out) {
		c.addFinding(finding{Deny, "device", "it overwrites a device"}, args)
		return
	}
	if !slices.Contains([]string{"/dev/zero", "/dev/urandom", "/dev/random", "/dev/full"}, in) {
		return
	}
	if counted || out == "/dev/null" {
		if in == "/dev/zero" {
			c.addFinding(finding{Warn, "dd", "it writes zeros"}, args)
		}
		return
	}
	c.addFinding(finding{Deny, "dd", "it writes without end"}, args)
}

func (c ruleChecker) checkKill(args []string) {
	rest := args[1:]
	if len(rest) > 0 && rest[0] != "--" && strings.HasPrefix(rest[0], "-") {
		if rest[0] == "-s" || rest[0] == "-n" {
			rest = rest[min(2, len(rest)):]
		} else {
			rest = rest[1:]
		}
	}
	if slices.Contains(rest, "-1") {
		c.addFinding(finding{Warn, "kill-all", "it ends every process"}, args)
	}
}

// checkHalt warns of commands that stop the machine.
func (c ruleChecker) checkHalt(name string, args []string) {
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
		c.addFinding(finding{Warn, "halt", "it stops the machine"}, args)
	}
}

// checkWrites checks a command that writes to a file.
func (c ruleChecker) checkWrites(name string, args []string) {
	switch {
	case c.dir.isDevice(name):
		c.addFinding(finding{Deny, "device", "it overwrites a device"}, args)
	case name == "/proc/sysrq-trigger":
		c.addFinding(finding{Warn, "halt", "it stops the machine"}, args)
	}
}
