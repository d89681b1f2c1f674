// Package template builds images in sandboxes: it parses a template file, runs each step in a
// new sandbox, and caches the changes of every step, so that a build continues from the first
// changed step. Template files and copied files come from the user; the code that
// runs in a step is hostile.
package template

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/build/image"
)

// Template is the recipe of an image.
type Template = sandpit.Recipe

// Step is one step of a template.
type Step = sandpit.RecipeStep

// Copy is a Step that copies files.
type Copy = sandpit.RecipeCopy

// NPM is a Step that adds npm packages.
type NPM = sandpit.RecipeNPM

// Build configures the sandboxes in which steps run.
type Build = sandpit.RecipeBuild

// shellArgs returns the command that runs a script in the image's shell.
func shellArgs(script string) []string { return sandpit.ShellArgs(script) }

// applyStep returns the configuration after a step.
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

// imagePath returns the absolute path of p in the image, relative to its working directory.
func imagePath(workDir, p string) string {
	if path.IsAbs(p) {
		return path.Clean(p)
	}
	return path.Join("/", workDir, p)
}

// withTemplate returns the configuration of the template's final image.
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
