package config

import (
	"fmt"
	"os"
	"strings"
)

// Options is everything Load looks at. Nothing is read from the process
// itself; FromProcess makes Options that describe it.
type Options struct {
	// File is the configuration file named by --config; it must exist. Default:
	// the file SANDPIT_CONFIG names, which must exist too, else the default
	// one (see DefaultFile), which need not exist.
	File string
	// Environ is the environment as os.Environ gives it. A variable that is
	// set to nothing counts as not set.
	Environ []string
	// UID is the user the program acts as; 0 uses the system's directories.
	UID int
	// Home is the user's home directory, used where no XDG variable says
	// otherwise.
	Home string
	// Overrides are the flags that were given, applied last and in order.
	Overrides []Override
	// ReadFile reads the configuration file. Default: os.ReadFile, bounded.
	ReadFile func(name string) ([]byte, error)
	// Usable reports whether uid may keep sockets in dir. Default: it is a
	// directory that belongs to uid and is closed to others.
	Usable func(dir string, uid int) bool
}

// Override is a setting given by a flag. With cobra:
//
//	cmd.Flags().Visit(func(f *pflag.Flag) {
//		if key, ok := keys[f.Name]; ok {
//			overrides = append(overrides, config.Override{Flag: "--" + f.Name, Key: key, Value: f.Value.String()})
//		}
//	})
type Override struct {
	// Flag is the flag as people write it, for messages: "--memory".
	Flag string
	// Key is the setting it sets.
	Key Key
	// Value is its text, in the form a variable would have.
	Value string
}

// FromProcess returns Options for this process: its environment, its effective
// user and that user's home directory.
func FromProcess() Options {
	return Options{Environ: os.Environ(), UID: os.Geteuid(), Home: os.Getenv("HOME")}
}

// Load puts the layers together: Default, the file, the environment, the
// flags. It makes no directory and checks nothing but the values.
//
// The error is always a *Problems, which is sandpit.Invalid.
func Load(o Options) (Config, error) {
	l := loader{opts: o.withDefaults(), cfg: Default(), problems: &Problems{}}
	l.env = parseEnvironment(o.Environ)
	l.loadFile()
	l.loadEnvironment()
	l.loadOverrides()
	l.fillProvider()
	l.fillDirs()
	l.fillDocker()
	l.fillServer()
	l.fillLLM()
	l.checkTogether()
	l.noticeSandbox()
	l.noticeDaytona()
	return l.cfg, l.problems.errorOrNil()
}

// noticeSandbox says that what agents call tools for is never done outside of a sandbox.
func (l *loader) noticeSandbox() {
	if l.cfg.Explicit(KeyUseSandbox) && !l.cfg.Sandbox.UseSandbox {
		l.addNotice("%s: %s = false has no effect: tools of agents always run in a sandbox", l.cfg.Sources[KeyUseSandbox], KeyUseSandbox)
	}
}

func (o Options) withDefaults() Options {
	if o.ReadFile == nil {
		o.ReadFile = readBounded
	}
	if o.Usable == nil {
		o.Usable = func(dir string, uid int) bool { return checkPrivate(dir, uid) == nil }
	}
	return o
}

// loader is one call of Load.
type loader struct {
	opts     Options
	env      map[string]string
	cfg      Config
	problems *Problems
	// namedLLMs are the lines of sections such as [llm.vision].
	namedLLMs []namedValue
}

// applyValue sets key and remembers where the value came from. It reports whether
// there is such a setting.
func (l *loader) applyValue(key Key, value any, source string, line int) bool {
	s, ok := findSetting(key)
	if !ok {
		return false
	}
	if err := s.set(&l.cfg, value); err != nil {
		l.problems.addProblem(Problem{Source: source, Line: line, Key: key, Text: err.Error()})
		return true
	}
	if line > 0 {
		source = fmt.Sprintf("%s:%d", source, line)
	}
	l.cfg.Sources[key] = source
	return true
}

func (l *loader) loadOverrides() {
	for _, o := range l.opts.Overrides {
		if !l.applyWord(o.Key, o.Value, o.Flag) {
			l.problems.addProblem(Problem{Source: o.Flag, Text: fmt.Sprintf("unknown setting %q", string(o.Key))})
		}
	}
}

// applyWord is apply for a variable or a flag, whose name says which setting
// is meant.
func (l *loader) applyWord(key Key, value, source string) bool {
	before := len(l.problems.List)
	known := l.applyValue(key, word(value), source, 0)
	for i := range l.problems.List[before:] {
		l.problems.List[before+i].Key = ""
	}
	return known
}

// parseEnvironment turns "name=value" lines into a map. The first of several wins,
// as it does for os.Getenv.
func parseEnvironment(lines []string) map[string]string {
	env := make(map[string]string, len(lines))
	for _, line := range lines {
		name, value, ok := strings.Cut(line, "=")
		if _, twice := env[name]; ok && !twice {
			env[name] = value
		}
	}
	return env
}
