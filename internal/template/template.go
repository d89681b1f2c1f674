// Package template builds images in sandboxes: it reads what a template file says,
// carries out its steps in a sandbox each, and keeps what every step has changed, so
// that a build goes on from the first step that is another one. Template files, and the
// files that are copied, are whoever's who builds; what runs in a step is hostile.
package template

import (
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/image"
)

// Template says how an image is built.
type Template struct {
	// Name is what the template is called if nobody says otherwise. Default: none.
	Name string `json:"name,omitempty"`
	// From is the image that it is based on.
	From sandpit.Image `json:"from"`
	// Steps are carried out in this order.
	Steps []Step `json:"steps,omitempty"`
	// Build says what sandboxes are like in which steps run.
	Build Build `json:"build,omitzero"`
	// Ports are those that programs listen on, such as 8080 or 53/udp.
	Ports []string `json:"ports,omitempty"`
	// Entrypoint and Command are what sandboxes run when nothing else is said. Default:
	// the base's, but an Entrypoint takes the base's Command away.
	Entrypoint []string `json:"entrypoint,omitempty"`
	Command    []string `json:"command,omitempty"`
	// Labels are marks for people and programs.
	Labels map[string]string `json:"labels,omitempty"`
}

// Build says what sandboxes are like in which steps run.
type Build struct {
	// Network is what they may reach. Default: nothing.
	Network sandpit.NetworkPolicy `json:"network,omitzero"`
	// Resources are their limits. Default: those of any sandbox, but 10 GiB of disk.
	Resources sandpit.Resources `json:"resources,omitzero"`
}

// Step is one thing that is done. Exactly one of Run, Copy, Env, WorkDir and User is
// set.
type Step struct {
	// Run is a program and its arguments. It must exit 0.
	Run []string `json:"run,omitempty"`
	// Secrets are names of environment variables that Run needs, and that stay out of the
	// image.
	Secrets []string `json:"secrets,omitempty"`
	// RunEnv is the environment of Run alone, in addition to that of the image.
	RunEnv map[string]string `json:"run_env,omitempty"`
	// RunUser runs Run in place of the user of the image.
	RunUser string `json:"run_user,omitempty"`
	// Copy brings in files.
	Copy *Copy `json:"copy,omitempty"`
	// Env, WorkDir and User count from here on, in sandboxes of the template too. In them
	// ${NAME} stands for the value that Env, or the base, has for it so far.
	Env     map[string]string `json:"env,omitempty"`
	WorkDir string            `json:"work_dir,omitempty"`
	User    string            `json:"user,omitempty"`
	// Line is where the file says so; 0 is unknown.
	Line int `json:"-"`
}

// Copy brings files of a directory of the machine into the image.
type Copy struct {
	// From are paths below the directory. Of a directory everything that is in it is
	// copied.
	From []string `json:"from"`
	// To is a path inside, relative to the working directory. It is a directory if it
	// ends with a slash, or if From is several or a directory.
	To string `json:"to"`
	// UID and GID own the copies.
	UID int `json:"uid,omitempty"`
	GID int `json:"gid,omitempty"`
	// Mode is what all copied files get. Default: that of each.
	Mode int64 `json:"mode,omitempty"`
}

// String is the step as people write it.
func (s Step) String() string {
	switch {
	case len(s.Run) == 3 && s.Run[0] == shellProgram && s.Run[1] == "-c":
		return "run " + s.Run[2]
	case len(s.Run) > 0:
		return "run " + strings.Join(s.Run, " ")
	case s.Copy != nil:
		return "copy " + strings.Join(s.Copy.From, " ") + " to " + s.Copy.To
	case s.WorkDir != "":
		return "workdir " + s.WorkDir
	case s.User != "":
		return "user " + s.User
	}
	return "env " + strings.Join(slices.Sorted(maps.Keys(s.Env)), " ")
}

const shellProgram = "/bin/sh"

// shell is a command of the image's shell.
func shell(script string) []string { return []string{shellProgram, "-c", script} }

var (
	envPattern  = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)
	portPattern = regexp.MustCompile(`^([1-9][0-9]{0,4})(/(tcp|udp))?$`)
)

// Validate tells what can never be built.
//
// Invalid: the first thing that is wrong.
func (t Template) Validate() error {
	if t.From == "" {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "from is missing"), `for example: from = "python:3.12-slim"`)
	}
	for i, s := range t.Steps {
		if err := s.validate(); err != nil {
			return fmt.Errorf("%s: %w", s.where(i), err)
		}
	}
	for _, p := range t.Ports {
		number, err := strconv.Atoi(strings.TrimSuffix(strings.TrimSuffix(p, "/tcp"), "/udp"))
		if !portPattern.MatchString(p) || err != nil || number > 65535 {
			return sandpit.Errorf(sandpit.Invalid, "port %q: want a number, maybe with /tcp or /udp", p)
		}
	}
	return nil
}

func (s Step) where(i int) string {
	if s.Line > 0 {
		return fmt.Sprintf("line %d", s.Line)
	}
	return fmt.Sprintf("step %d", i+1)
}

func (s Step) validate() error {
	set := 0
	for _, is := range []bool{len(s.Run) > 0, s.Copy != nil, len(s.Env) > 0, s.WorkDir != "", s.User != ""} {
		if is {
			set++
		}
	}
	switch {
	case set != 1:
		return sandpit.Errorf(sandpit.Invalid, "want one of run, copy, env, workdir and user, and there are %d", set)
	case len(s.Run) == 0 && (len(s.Secrets) > 0 || s.RunUser != ""):
		return sandpit.Errorf(sandpit.Invalid, "only a step that runs a command can have secrets")
	case s.Copy != nil && (len(s.Copy.From) == 0 || s.Copy.To == ""):
		return sandpit.Errorf(sandpit.Invalid, "copy: what or where to is missing")
	}
	for _, name := range slices.Concat(s.Secrets, slices.Sorted(maps.Keys(s.Env))) {
		if !envPattern.MatchString(name) {
			return sandpit.Errorf(sandpit.Invalid, "%q is not the name of an environment variable", name)
		}
	}
	return nil
}

// Secrets are the names of all secrets that steps need, sorted.
func (t Template) Secrets() []string {
	var names []string
	for _, s := range t.Steps {
		names = append(names, s.Secrets...)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// apply is what a step says about programs from here on.
func (s Step) apply(c image.Config) image.Config {
	switch {
	case len(s.Env) > 0:
		env := maps.Clone(c.Env)
		if env == nil {
			env = make(map[string]string, len(s.Env))
		}
		for name, value := range s.Env {
			env[name] = replaced(value, c.Env)
		}
		c.Env = env
	case s.WorkDir != "":
		c.WorkDir = inside(c.WorkDir, replaced(s.WorkDir, c.Env))
	case s.User != "":
		c.User = replaced(s.User, c.Env)
	}
	return c
}

// inside is a path of the image, relative to its working directory.
func inside(workDir, p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join("/", workDir, p)
}

// finish is what the whole template says about programs.
func (t Template) finish(c image.Config) image.Config {
	if len(t.Entrypoint) > 0 {
		c.Entrypoint, c.Cmd = t.Entrypoint, nil
	}
	if len(t.Command) > 0 {
		c.Cmd = t.Command
	}
	ports := slices.Clone(c.ExposedPorts)
	for _, p := range t.Ports {
		if !strings.Contains(p, "/") {
			p += "/tcp"
		}
		ports = append(ports, p)
	}
	slices.Sort(ports)
	c.ExposedPorts = slices.Compact(ports)
	if len(t.Labels) > 0 {
		labels := maps.Clone(c.Labels)
		if labels == nil {
			labels = make(map[string]string, len(t.Labels))
		}
		maps.Copy(labels, t.Labels)
		c.Labels = labels
	}
	return c
}
