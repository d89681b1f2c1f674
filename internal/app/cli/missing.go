package cli

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/files/hostpath"
)

// explainMissing adds to an error where on this machine a program is that the host image does not
// contain, and how to mount it. Version managers install programs in the home directory behind
// small launchers (shims).
func explainMissing(err error, name, path string, rules hostpath.Rules) error {
	if strings.Contains(name, "/") {
		return err
	}
	for _, dir := range filepath.SplitList(path) {
		program := filepath.Join(dir, name)
		if !isExecutable(program) {
			continue
		}
		var mounts []string
		for _, shown := range directoriesFor(program, rules) {
			mounts = append(mounts, "-v", shellQuote(shown+":"+shown))
		}
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.NotFound, "%s is not in the sandbox: on this machine it is %s, but the host image contains only /usr", name, program),
			"mount it: "+strings.Join(mounts, " ")+" -e "+shellQuote("PATH="+dir+":/usr/local/bin:/usr/bin:/bin"))
	}
	return sandpit.WithHint(err, "the host image contains the programs in /usr of this machine; use another image with: sandpit run IMAGE "+shellQuote(name))
}

// directoriesFor returns the directories that a program needs: its installation, or its parts if
// that may not be mounted, such as ~/.local with sandpit's own state.
func directoriesFor(program string, rules hostpath.Rules) []string {
	tree := installationDir(program)
	if resolved, err := hostpath.Resolve(tree); err != nil || rules.Check(resolved) == nil {
		return []string{tree}
	}
	parts := []string{filepath.Dir(program)}
	if lib := filepath.Join(tree, "lib"); isDirectory(lib) {
		parts = append(parts, lib)
	}
	return parts
}

func isDirectory(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

func isExecutable(program string) bool {
	info, err := os.Stat(program)
	return err == nil && !info.IsDir() && info.Mode()&0o111 != 0
}

// installationDir guesses the directory with everything that a program needs: the one above bin,
// sbin or shims.
func installationDir(program string) string {
	dir := filepath.Dir(program)
	switch filepath.Base(dir) {
	case "bin", "sbin", "shims":
		return filepath.Dir(dir)
	}
	return dir
}
