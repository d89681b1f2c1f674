package template

import (
	"embed"
	"io/fs"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// BuiltinPrefix begins the names of built-in template files.
const BuiltinPrefix = "builtin:"

//go:embed builtin
var builtinFiles embed.FS

// Builtins returns the names of the built-in template files, sorted.
func Builtins() []string {
	// Glob fails only for an invalid pattern.
	files, _ := fs.Glob(builtinFiles, "builtin/*.toml")
	names := make([]string, len(files))
	for i, file := range files {
		names[i] = strings.TrimSuffix(strings.TrimPrefix(file, "builtin/"), ".toml")
	}
	slices.Sort(names)
	return names
}

// aliases are other names of built-in template files.
var aliases = map[string]string{"claude": "claude-code"}

// Builtin parses a built-in template file.
//
// NotFound: no such template file.
func Builtin(name string) (Template, error) {
	if other, ok := aliases[name]; ok {
		name = other
	}
	if !slices.Contains(Builtins(), name) {
		return Template{}, sandpit.NoBuiltinTemplate(name, Builtins())
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
