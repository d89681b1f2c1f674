package template

import (
	"embed"
	"io/fs"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// BuiltinPrefix begins the names of template files that are part of this program.
const BuiltinPrefix = "builtin:"

//go:embed builtin
var builtinFiles embed.FS

// Builtins returns the names of the template files that are part of this program, sorted.
func Builtins() []string {
	// The error is that of a bad pattern, and this one is good.
	files, _ := fs.Glob(builtinFiles, "builtin/*.toml")
	names := make([]string, len(files))
	for i, file := range files {
		names[i] = strings.TrimSuffix(strings.TrimPrefix(file, "builtin/"), ".toml")
	}
	slices.Sort(names)
	return names
}

// aliases are other names of template files that are part of this program.
var aliases = map[string]string{"claude": "claude-code"}

// Builtin reads a template file that is part of this program.
//
// NotFound: there is none of that name.
func Builtin(name string) (Template, error) {
	if other, ok := aliases[name]; ok {
		name = other
	}
	if !slices.Contains(Builtins(), name) {
		return Template{}, sandpit.WithHint(
			sandpit.Errorf(sandpit.NotFound, "no template file %.60q is part of this program", name), "there are "+strings.Join(Builtins(), ", "))
	}
	data, err := builtinFiles.ReadFile("builtin/" + name + ".toml")
	if err != nil {
		return Template{}, err
	}
	dir, err := fs.Sub(builtinFiles, "builtin")
	if err != nil {
		return Template{}, err
	}
	return Parse(data, dir)
}
