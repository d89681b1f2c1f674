package commandscreen

import (
	"path"
	"slices"
	"strings"
)

// checkCommand checks a program with its arguments, and returns its output as far as it is
// known. For programs that run others, it checks the inner command.
func (s *state) checkCommand(args []string, stdin string) string {
	s.depth++
	defer func() { s.depth-- }()
	if len(args) == 0 || !s.countStep() {
		return ""
	}
	if strings.ContainsFunc(args[0], isMark) {
		s.unknownProgram(args)
		return worstTaint(args[0]) + string(unknown) + "\n"
	}
	if body, ok := s.funcs[args[0]]; ok {
		return s.checkFunction(args, func() string { return s.checkStatement(body, stdin) })
	}
	name := baseName(args[0])
	if name == "find" {
		s.checkFound(args)
	}
	s.rules().check(name, args)
	if done := s.ownCommand(name, args, stdin); done {
		return ""
	}
	if isShell(name) {
		return s.checkShell(args, stdin)
	}
	if text, ok := s.files[path.Clean(args[0])]; ok { // a script of the same text
		s.checkScript(text, true, args)
		return string(unknown) + "\n"
	}
	if inner, ok := unwrapCommand(name, args); ok {
		return s.checkInner(name, args, inner, stdin)
	}
	return s.outputOf(name, args, stdin)
}

// unknownProgram checks a command whose program is not known.
func (s *state) unknownProgram(args []string) {
	switch worstTaint(args[0]) {
	case string(hidden):
		s.addFinding(finding{Ask, "hidden-program", "the program is hidden by an encoding"}, args)
		return
	case string(fromNet):
		s.addFinding(finding{Warn, "fetched-script", "it runs what was just fetched"}, args)
		return
	}
	p := parseOptions(args[1:], "")
	if p.hasOption("rR", "recursive") && s.dir.worstPlace(p.operands) == system && !s.policy.NoBuiltin {
		s.addFinding(finding{Ask, "unknown-program", "an unknown program runs recursively on the system"}, args)
	}
}

// checkFunction checks the body of a function with the arguments of a call.
func (s *state) checkFunction(args []string, body func() string) string {
	if s.calls >= maxFunction {
		return string(unknown)
	}
	s.calls++
	defer func() { s.calls-- }()
	defer s.vars.setPositional(args[1:])()
	return body()
}

// ownCommand checks a command that is built into shells.
func (s *state) ownCommand(name string, args []string, stdin string) (done bool) {
	rest := args[1:]
	switch name {
	case "cd", "pushd", "chdir":
		s.dir = s.dir.change(parseOptions(rest, "").operands)
	case "popd":
		s.dir = ""
	case "eval":
		s.checkScript(strings.Join(rest, " "), false, args)
		return true
	case ".", "source":
		if len(rest) > 0 {
			s.checkScript(s.files.read(rest[0]), false, args)
		}
		return true
	case "trap":
		if len(rest) > 1 {
			s.checkScript(rest[0], false, args)
		}
	case "alias":
		for _, a := range rest {
			_, text, _ := strings.Cut(a, "=")
			s.checkScript(text, false, args)
		}
	case "set":
		if i := slices.Index(rest, "--"); i >= 0 {
			s.vars.setPositional(rest[i+1:])
		}
	case "read":
		for _, n := range parseOptions(rest, "dinNptu").operands {
			s.vars[n] = []string{strings.TrimRight(stdin, "\n")}
		}
	default:
		return false
	}
	return true
}

// baseName returns the lower-case name of a program without its directory.
func baseName(program string) string { return strings.ToLower(path.Base(program)) }

func isShell(name string) bool {
	return slices.Contains([]string{
		"sh", "bash", "dash", "zsh", "ksh", "ksh93", "mksh", "ash", "rbash", "yash", "fish", "hush",
	}, name)
}

// checkShell checks the text that a shell runs.
func (s *state) checkShell(args []string, stdin string) string {
	text, rest, ok := s.shellText(args[1:], stdin)
	dir := s.dir
	defer func() { s.dir = dir }()
	if len(rest) > 0 {
		rest = rest[1:] // $0
	}
	defer s.vars.setPositional(rest)()
	s.checkScript(text, ok, args)
	return string(unknown) + "\n"
}

// shellText returns the text that a shell runs and its arguments, $0 first. It
// is piped if it is a file or the shell's input.
func (s *state) shellText(args []string, stdin string) (text string, rest []string, piped bool) {
	fromArg, fromInput := false, false
	i := 0
	for ; i < len(args); i++ {
		a := args[i]
		if a == "--" {
			i++
			break
		}
		if len(a) < 2 || (a[0] != '-' && a[0] != '+') {
			break
		}
		if strings.HasPrefix(a, "--") {
			if a == "--rcfile" || a == "--init-file" {
				i++
			}
			continue
		}
		fromArg = fromArg || (a[0] == '-' && strings.Contains(a, "c"))
		fromInput = fromInput || (a[0] == '-' && strings.Contains(a, "s"))
		if strings.ContainsAny(a, "oO") {
			i++
		}
	}
	operands := args[min(i, len(args)):]
	switch {
	case fromArg && len(operands) > 0:
		return operands[0], operands[1:], false
	case fromArg:
		return "", nil, false
	case fromInput || len(operands) == 0:
		return stdin, append([]string{"sh"}, operands...), true
	case operands[0] == "-" || operands[0] == "/dev/stdin":
		return stdin, operands, true
	}
	if text, ok := s.files[path.Clean(operands[0])]; ok {
		return text, operands, true
	}
	return worstTaint(operands[0]), operands, false
}

// checkInner checks the command that a program runs.
func (s *state) checkInner(name string, args, inner []string, stdin string) string {
	switch name {
	case "xargs", "parallel":
		return s.checkCommand(withInput(inner, stdin), "")
	case "watch":
		s.checkScript(strings.Join(inner, " "), false, args)
		return ""
	case "su", "runuser", "script", "flock":
		if text, ok := optionValue(args[1:], "-c", "--command", "--session-command"); ok {
			s.checkScript(text, false, args)
			return string(unknown) + "\n"
		}
		if name == "su" || name == "script" {
			return ""
		}
	case "env":
		if text, ok := optionValue(args[1:], "-S", "--split-string"); ok {
			s.checkScript(text, false, args)
		}
	}
	return s.checkCommand(inner, stdin)
}

// withInput adds the input of xargs to a command.
func withInput(inner []string, stdin string) []string {
	fields := strings.Fields(stdin)
	if len(fields) == 0 {
		fields = []string{string(unknown)}
	}
	if len(fields) > maxFields {
		fields = fields[:maxFields]
	}
	var args []string
	used := false
	for _, a := range inner {
		if strings.Contains(a, "{}") {
			used = true
			for _, f := range fields {
				args = append(args, strings.ReplaceAll(a, "{}", f))
				if len(args) > maxFields {
					return args
				}
			}
			continue
		}
		args = append(args, a)
	}
	if !used {
		args = append(args, fields...)
	}
	return args
}

// optionValue returns the value of an option, apart or joined to it.
func optionValue(args []string, names ...string) (value string, ok bool) {
	for i, a := range args {
		for _, n := range names {
			switch rest, has := strings.CutPrefix(a, n); {
			case a == n && i+1 < len(args):
				return args[i+1], true
			case has && strings.HasPrefix(n, "--") && strings.HasPrefix(rest, "="):
				return rest[1:], true
			case has && !strings.HasPrefix(n, "--") && rest != "":
				return rest, true
			}
		}
	}
	return "", false
}
