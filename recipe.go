package sandpit

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Recipe declares how a template is built and how its sandboxes run. The zero value of a
// field means the default stated with it.
type Recipe struct {
	// Name is the name of the template if the request has none. Default: none.
	Name string `json:"name,omitempty"`
	// From is the base image.
	From Image `json:"from"`
	// Steps are performed in order.
	Steps []RecipeStep `json:"steps,omitempty"`
	// Build configures the sandboxes in which steps run.
	Build RecipeBuild `json:"build,omitzero"`
	// Ports are those that programs listen on, such as 8080 or 53/udp.
	Ports []string `json:"ports,omitempty"`
	// Entrypoint and Command are the default command of the image. Default: those of the
	// base, but an Entrypoint clears the base's Command.
	Entrypoint []string `json:"entrypoint,omitempty"`
	Command    []string `json:"command,omitempty"`
	// Labels are key-value pairs for people and programs.
	Labels map[string]string `json:"labels,omitempty"`
	// Start is a shell command that runs in every sandbox of the template from its creation
	// on. Default: none.
	Start string `json:"start,omitempty"`
	// StartAnew starts Start in each sandbox. Default: where sandboxes can be saved, Start
	// runs once and all sandboxes continue from there; what it created by then, such as
	// keys, is the same in all of them.
	StartAnew bool `json:"start_anew,omitempty"`
	// Ready is the ready check of Start. Default: ready at once.
	Ready Ready `json:"ready,omitzero"`
	// Resources are the default limits of its sandboxes. Default: those of any sandbox.
	Resources Resources `json:"resources,omitzero"`
	// Network is the default network policy of its sandboxes. Default: that of any sandbox.
	Network NetworkPolicy `json:"network,omitzero"`
	// Variables declares environment variables that a sandbox takes. Default: any variable
	// is accepted, none is required.
	Variables []Variable `json:"variables,omitempty"`
}

// RecipeBuild configures the sandboxes in which steps run.
type RecipeBuild struct {
	// Network is their network policy. Default: offline.
	Network NetworkPolicy `json:"network,omitzero"`
	// Resources are their limits. Default: those of any sandbox, with 10 GiB of disk.
	Resources Resources `json:"resources,omitzero"`
}

// RecipeStep is one step of a build. Exactly one of Run, Copy, NPM, Env, WorkDir and User
// is set.
type RecipeStep struct {
	// Run is a program and its arguments. It must exit 0.
	Run []string `json:"run,omitempty"`
	// Secrets are names of environment variables that Run needs and that do not enter the
	// image.
	Secrets []string `json:"secrets,omitempty"`
	// RunEnv is added to the environment of Run only.
	RunEnv map[string]string `json:"run_env,omitempty"`
	// RunUser runs Run instead of the user of the image.
	RunUser string `json:"run_user,omitempty"`
	// Fresh performs this step and all later ones even if their results are cached.
	Fresh bool `json:"fresh,omitempty"`
	// Copy copies files into the image.
	Copy *RecipeCopy `json:"copy,omitempty"`
	// NPM installs npm packages.
	NPM *RecipeNPM `json:"npm,omitempty"`
	// Env, WorkDir and User apply to later steps and to sandboxes of the template. In them
	// ${NAME} stands for the value that Env or the base has at this step.
	Env     map[string]string `json:"env,omitempty"`
	WorkDir string            `json:"work_dir,omitempty"`
	User    string            `json:"user,omitempty"`
	// Line is the line in the template file; 0 is unknown.
	Line int `json:"-"`
}

// RecipeCopy copies files of the build's directory into the image.
type RecipeCopy struct {
	// From are paths below the directory. The contents of a directory are copied.
	From []string `json:"from"`
	// To is a path inside, relative to the working directory. It is a directory if it
	// ends with a slash, or if From has several paths or is a directory.
	To string `json:"to"`
	// UID and GID own the copies.
	UID int `json:"uid,omitempty"`
	GID int `json:"gid,omitempty"`
	// Mode is the mode of all copied files. Default: each file's own.
	Mode int64 `json:"mode,omitempty"`
}

// RecipeNPM installs npm packages into the image. The server fetches them and checks the
// digests of the lock file. No install script runs.
type RecipeNPM struct {
	// Lock is the text of package-lock.json, of npm 7 or newer. Packages for development or
	// for other systems are omitted. At most 1 MiB.
	Lock string `json:"lock"`
	// To is the absolute path of the directory in which node_modules is created.
	To string `json:"to"`
}

// Ready is a ready check, repeated until it succeeds. At most one of Command, Port and URL
// is set.
type Ready struct {
	// Command is a shell command that must exit 0.
	Command string `json:"command,omitempty"`
	// Port is a port inside that must accept connections.
	Port int `json:"port,omitempty"`
	// URL must respond with a status below 400: http://localhost:PORT/PATH.
	URL string `json:"url,omitempty"`
	// Timeout is the maximum time, in seconds. Default: 60. At most 1800.
	Timeout float64 `json:"timeout_seconds,omitempty"`
	// Interval is the time between two attempts, in seconds. Default: 0.05. From 0.01 to
	// 60.
	Interval float64 `json:"interval_seconds,omitempty"`
}

// Within returns the maximum time.
func (r Ready) Within() time.Duration { return seconds(cmp.Or(r.Timeout, 60)) }

// Every returns the time between two attempts.
func (r Ready) Every() time.Duration { return seconds(cmp.Or(r.Interval, 0.05)) }

func seconds(n float64) time.Duration { return time.Duration(n * float64(time.Second)) }

// Variable is an environment variable that a sandbox of a template takes at creation.
type Variable struct {
	Name string `json:"name"`
	// Required refuses a sandbox without it. Default: optional.
	Required bool `json:"required,omitempty"`
	// Default is its value if none is given. Default: the variable is not set.
	Default string `json:"default,omitempty"`
	// Description is for people.
	Description string `json:"description,omitempty"`
}

// The bounds of a Recipe.
const (
	maxSteps     = 1000
	maxVariables = 100
	maxLine      = 64 << 10 // bytes of a command
	maxLock      = 1 << 20  // bytes
)

// String returns the step as text for people.
func (s RecipeStep) String() string {
	switch {
	case len(s.Run) == 3 && s.Run[0] == shellProgram && s.Run[1] == "-c":
		return "run " + s.Run[2]
	case len(s.Run) > 0:
		return "run " + strings.Join(s.Run, " ")
	case s.Copy != nil:
		return "copy " + strings.Join(s.Copy.From, " ") + " to " + s.Copy.To
	case s.NPM != nil:
		return "npm packages to " + s.NPM.To
	case s.WorkDir != "":
		return "workdir " + s.WorkDir
	case s.User != "":
		return "user " + s.User
	}
	return "env " + strings.Join(slices.Sorted(maps.Keys(s.Env)), " ")
}

const shellProgram = "/bin/sh"

// ShellArgs returns the arguments that run a script in an image's shell.
func ShellArgs(script string) []string { return []string{shellProgram, "-c", script} }

var (
	envPattern        = newPattern(`^[A-Za-z_][A-Za-z0-9_]*$`)
	recipePortPattern = newPattern(`^([1-9][0-9]{0,4})(/(tcp|udp))?$`)
	readyURLPattern   = newPattern(`^http://(localhost|127\.0\.0\.1)(:[1-9][0-9]{0,4})?(/[!-~]*)?$`)
)

// IsVariableName reports whether name is a valid name of an environment variable.
func IsVariableName(name string) bool { return envPattern().MatchString(name) }

// Validate returns an Invalid error for the first defect of a recipe that can never be built.
func (r Recipe) Validate() error {
	if r.From == "" {
		return WithHint(Errorf(Invalid, "from is missing"), `for example: from = "python:3.12-slim"`)
	}
	if len(r.Steps) > maxSteps {
		return Errorf(Invalid, "%d steps, want at most %d", len(r.Steps), maxSteps)
	}
	for i, s := range r.Steps {
		if err := s.validate(); err != nil {
			return fmt.Errorf("%s: %w", s.Where(i), err)
		}
	}
	for _, p := range r.Ports {
		number, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSuffix(p, "/tcp"), "/udp"))
		if !recipePortPattern().MatchString(p) || err != nil || number > 65535 {
			return Errorf(Invalid, "port %q: want a number, maybe with /tcp or /udp", p)
		}
	}
	if len(r.Start) > maxLine {
		return Errorf(Invalid, "start: %d bytes, want at most %d", len(r.Start), maxLine)
	}
	if r.StartAnew && r.Start == "" {
		return Errorf(Invalid, "start_anew: there is no start command")
	}
	if err := r.Ready.validate(r.Start != ""); err != nil {
		return fmt.Errorf("ready: %w", err)
	}
	return validateVariables(r.Variables)
}

// Where returns the line or, if unknown, the number of step i.
func (s RecipeStep) Where(i int) string {
	if s.Line > 0 {
		return fmt.Sprintf("line %d", s.Line)
	}
	return fmt.Sprintf("step %d", i+1)
}

func (s RecipeStep) validate() error {
	set := 0
	for _, is := range []bool{len(s.Run) > 0, s.Copy != nil, s.NPM != nil, len(s.Env) > 0, s.WorkDir != "", s.User != ""} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return Errorf(Invalid, "want one of run, copy, npm, env, workdir and user, got %d", set)
	case len(s.Run) == 0 && (len(s.Secrets) > 0 || s.RunUser != ""):
		return Errorf(Invalid, "only a step that runs a command can have secrets")
	case s.Copy != nil && (len(s.Copy.From) == 0 || s.Copy.To == ""):
		return Errorf(Invalid, "copy: from or to is missing")
	case s.NPM != nil && (s.NPM.Lock == "" || !path.IsAbs(s.NPM.To)):
		return Errorf(Invalid, "npm: the lock file is missing, or the directory is not absolute")
	case s.NPM != nil && len(s.NPM.Lock) > maxLock:
		return Errorf(Invalid, "npm: a lock file of %d bytes, want at most %d", len(s.NPM.Lock), maxLock)
	}
	for _, name := range slices.Concat(s.Secrets, slices.Sorted(maps.Keys(s.Env))) {
		if !envPattern().MatchString(name) {
			return badVariable(name)
		}
	}
	return nil
}

func badVariable(name string) error {
	return Errorf(Invalid, "%.100q is not the name of an environment variable", name)
}

func (r Ready) validate(started bool) error {
	set := 0
	for _, is := range []bool{r.Command != "", r.Port != 0, r.URL != ""} {
		if is {
			set++
		}
	}
	switch {
	case set > 1:
		return Errorf(Invalid, "want one of command, port and url, got %d", set)
	case !started && r != (Ready{}):
		return Errorf(Invalid, "there is no start command")
	case len(r.Command) > maxLine:
		return Errorf(Invalid, "a command of %d bytes, want at most %d", len(r.Command), maxLine)
	case r.Port < 0 || r.Port > 65535:
		return Errorf(Invalid, "port %d: want 1 to 65535", r.Port)
	case r.URL != "" && !readyURLPattern().MatchString(r.URL):
		return Errorf(Invalid, "url %.200q: want http://localhost:PORT/PATH", r.URL)
	case !(r.Timeout >= 0 && r.Timeout <= 1800): // also refuses NaN
		return Errorf(Invalid, "timeout of %v seconds: want at most 1800", r.Timeout)
	case r.Interval != 0 && !(r.Interval >= 0.01 && r.Interval <= 60):
		return Errorf(Invalid, "interval of %v seconds: want 0.01 to 60", r.Interval)
	}
	return nil
}

func validateVariables(list []Variable) error {
	if len(list) > maxVariables {
		return Errorf(Invalid, "%d variables, want at most %d", len(list), maxVariables)
	}
	seen := map[string]bool{}
	for _, v := range list {
		switch {
		case !envPattern().MatchString(v.Name):
			return badVariable(v.Name)
		case seen[v.Name]:
			return Errorf(Invalid, "variable %s is declared twice", v.Name)
		case v.Required && v.Default != "":
			return Errorf(Invalid, "variable %s is required and cannot have a default", v.Name)
		}
		seen[v.Name] = true
	}
	return nil
}

// Secrets returns the sorted names of all secrets that steps need.
func (r Recipe) Secrets() []string {
	var names []string
	for _, s := range r.Steps {
		names = append(names, s.Secrets...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Environment checks the given environment of a sandbox against Variables, and returns it
// with their defaults.
//
// Invalid: a required variable is missing.
func (r Recipe) Environment(given map[string]string) (map[string]string, error) {
	env := maps.Clone(given)
	for _, v := range r.Variables {
		if _, has := given[v.Name]; has {
			continue
		}
		if v.Required {
			return nil, WithHint(Errorf(Invalid, "the template requires variable %s", v.Name), "add -e "+v.Name+"=VALUE")
		}
		if v.Default != "" {
			if env == nil {
				env = make(map[string]string)
			}
			env[v.Name] = v.Default
		}
	}
	return env, nil
}
