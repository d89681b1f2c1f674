package cli

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// scriptInterpreters returns the interpreters of scripts by their file extension.
func scriptInterpreters() map[string][]string {
	return map[string][]string{
		".py":   {"python3"},
		".sh":   {"sh"},
		".bash": {"bash"},
		".js":   {"node"},
		".mjs":  {"node"},
		".cjs":  {"node"},
		".ts":   {"node", "--experimental-strip-types"},
		".rb":   {"ruby"},
		".pl":   {"perl"},
		".php":  {"php"},
		".lua":  {"lua"},
		".go":   {"go", "run"},
		".R":    {"Rscript"},
	}
}

// script is a file of this machine that is copied into the sandbox and run there.
type script struct {
	source string
	runner []string
}

// findScript reports whether a file is a script, by its extension or its first line.
func findScript(name string) (script, bool) {
	info, err := os.Stat(name)
	if err != nil || !info.Mode().IsRegular() {
		return script{}, false
	}
	if runner := scriptInterpreters()[filepath.Ext(name)]; runner != nil {
		return script{source: name, runner: runner}, true
	}
	if runner := readShebang(name); runner != nil {
		return script{source: name, runner: runner}, true
	}
	return script{}, false
}

// readShebang returns the command in a file's first line, or nil.
func readShebang(name string) []string {
	f, err := os.Open(name)
	if err != nil {
		return nil
	}
	defer f.Close()
	line, err := bufio.NewReaderSize(f, 256).ReadSlice('\n')
	command, ok := strings.CutPrefix(string(line), "#!")
	if err != nil || !ok {
		return nil
	}
	fields := strings.Fields(command)
	switch {
	case len(fields) == 0:
		return nil
	case len(fields) > 2 && path.Base(fields[0]) == "env" && fields[1] == "-S": // several words follow
		return fields[2:]
	case len(fields) > 1 && path.Base(fields[0]) == "env":
		return fields[1:]
	}
	return fields
}

// copyInto copies the script to a directory of the sandbox and returns the command that runs it.
func (s script) copyInto(ctx context.Context, files sandpit.Files, user, dir string) ([]string, error) {
	f, err := os.Open(s.source)
	if err != nil {
		return nil, fmt.Errorf("read the script: %w", err)
	}
	defer f.Close()
	target := path.Join(dir, filepath.Base(s.source))
	if err := files.WriteFile(ctx, user, target, f, sandpit.WriteOptions{}); err != nil {
		return nil, fmt.Errorf("copy the script: %w", err)
	}
	return append(append([]string(nil), s.runner...), target), nil
}
