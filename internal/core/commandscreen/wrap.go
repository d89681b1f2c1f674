package commandscreen

import (
	"slices"
	"strings"
)

// wrapper describes the command line of a program that runs another.
type wrapper struct {
	values  string // its one-letter options that take a value
	skip    int    // operands before the command
	assigns bool   // NAME=VALUE may come before the command
}

func wrapperPrograms() map[string]wrapper {
	return map[string]wrapper{
		"builtin": {}, "busybox": {}, "catchsegv": {}, "chroot": {skip: 1}, "chrt": {values: "TPD", skip: 1},
		"command": {}, "dbus-run-session": {}, "doas": {values: "uCL"}, "eatmydata": {},
		"env": {values: "uCS", assigns: true}, "exec": {values: "a"}, "fakeroot": {values: "lsib"},
		"flock": {values: "wE", skip: 1}, "gosu": {skip: 1}, "ionice": {values: "cnpPu"},
		"linux32": {}, "linux64": {}, "ltrace": {values: "aAeFlnopsuxX"}, "nice": {values: "n"}, "nohup": {},
		"nsenter": {values: "tSG"}, "numactl": {values: "CNmipl"}, "parallel": {values: "jnNSaL"},
		"proot": {values: "rbwqkp"}, "proxychains": {values: "f"}, "proxychains4": {values: "f"},
		"runuser": {values: "ugGscw"}, "script": {}, "setarch": {skip: 1}, "setpriv": {}, "setsid": {},
		"stdbuf": {values: "ioe"}, "strace": {values: "aeEIobpPsSuUX"}, "su": {}, "su-exec": {skip: 1},
		"sudo": {values: "aCcDghpRrtTUu", assigns: true}, "systemd-run": {values: "pHMuE"},
		"taskset": {values: "p", skip: 1}, "time": {values: "fo"}, "timeout": {values: "sk", skip: 1},
		"torsocks": {}, "toybox": {}, "unbuffer": {}, "unshare": {values: "SGRw"}, "watch": {values: "nq"},
		"xargs": {values: "InPLsdEa"},
	}
}

// longValues returns the long options of wrappers whose value may be a separate argument.
func longValues() []string {
	return []string{
		"--user", "--group", "--chdir", "--unset", "--signal", "--kill-after", "--adjustment", "--host",
		"--prompt", "--chroot", "--max-args", "--max-procs", "--max-lines", "--max-chars", "--replace",
		"--delimiter", "--arg-file", "--class", "--classdata", "--timeout", "--interval", "--format",
		"--output", "--role", "--type", "--close-from", "--reuid", "--regid", "--groups", "--jobs",
		"--input", "--error", "--target", "--command-timeout", "--property", "--unit", "--shell",
		"--split-string", "--login-class", "--other-user", "--root", "--wd", "--setuid", "--setgid",
	}
}

// unwrapCommand returns the command that a program runs.
func unwrapCommand(name string, args []string) (inner []string, ok bool) {
	w, ok := wrapperPrograms()[name]
	if !ok {
		return nil, false
	}
	skip := w.skip
	for i := 1; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
		case strings.HasPrefix(a, "--"):
			if slices.Contains(longValues(), a) {
				i++
			}
		case len(a) > 1 && a[0] == '-':
			if at := strings.IndexAny(a[1:], w.values); w.values != "" && at >= 0 && at == len(a)-2 {
				i++
			}
			if name == "command" && strings.ContainsAny(a, "vV") {
				return nil, true // only prints the path of the command
			}
		case w.assigns && strings.Contains(a, "="):
		case skip > 0:
			skip--
		default:
			return args[i:], true
		}
	}
	return nil, true
}

// parsed are the arguments of a program as getopt parses them.
type parsed struct {
	short    string
	long     []string
	operands []string
}

// parseOptions parses arguments. Options may follow operands; values are the one-letter
// options that take a value.
func parseOptions(args []string, values string) (p parsed) {
	var short strings.Builder
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			p.operands = append(p.operands, args[i+1:]...)
			i = len(args)
		case strings.HasPrefix(a, "--"):
			name, _, _ := strings.Cut(a[2:], "=")
			p.long = append(p.long, name)
		case len(a) > 1 && a[0] == '-':
			letters := a[1:]
			if at := strings.IndexAny(letters, values); values != "" && at >= 0 {
				if at == len(letters)-1 {
					i++
				}
				letters = letters[:at+1]
			}
			short.WriteString(letters)
		default:
			p.operands = append(p.operands, a)
		}
	}
	p.short = short.String()
	return p
}

// hasOption reports whether one of the letters or of the long options was given. A
// long option may be abbreviated.
func (p parsed) hasOption(letters string, long ...string) bool {
	if letters != "" && strings.ContainsAny(p.short, letters) {
		return true
	}
	for _, given := range p.long {
		for _, full := range long {
			if given != "" && strings.HasPrefix(full, given) {
				return true
			}
		}
	}
	return false
}
