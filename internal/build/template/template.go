// Package template builds images in sandboxes: it reads what a template file says,
// carries out its steps in a sandbox each, and keeps what every step has changed, so
// that a build goes on from the first step that is another one. Template files, and the
// files that are copied, are whoever's who builds; what runs in a step is hostile.
package template

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// Template says how an image is built.
type Template = sandpit.Recipe

// Step is one thing that is done for that.
type Step = sandpit.RecipeStep

// Copy is a Step that brings in files.
type Copy = sandpit.RecipeCopy

// NPM is a Step that brings in packages of npm.
type NPM = sandpit.RecipeNPM

// Build says what sandboxes are like in which steps run.
type Build = sandpit.RecipeBuild

// shellArgs is a command of the image's shell.
func shellArgs(script string) []string { return sandpit.ShellArgs(script) }

// applyStep is what a step says about programs from here on.
func applyStep(s Step, c image.Config) image.Config {
	switch {
	case len(s.Env) > 0:
		env := maps.Clone(c.Env)
		if env == nil {
			env = make(map[string]string, len(s.Env))
		}
		for name, value := range s.Env {
			env[name] = expandEnv(value, c.Env)
		}
		c.Env = env
	case s.WorkDir != "":
		c.WorkDir = imagePath(c.WorkDir, expandEnv(s.WorkDir, c.Env))
	case s.User != "":
		c.User = expandEnv(s.User, c.Env)
	}
	return c
}

// imagePath is a path of the image, relative to its working directory.
func imagePath(workDir, p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join("/", workDir, p)
}

// withTemplate is what the whole template says about programs.
func withTemplate(t Template, c image.Config) image.Config {
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
