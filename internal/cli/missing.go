package cli

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// explainMissing says where on this machine a program is that the host image
// does not bring in, and how to bring it in. Version managers keep programs in
// the home directory behind small starter programs (shims).
func explainMissing(err error, name, path string) error {
	if strings.Contains(name, "/") {
		return err
	}
	for _, dir := range filepath.SplitList(path) {
		program := filepath.Join(dir, name)
		if !isExecutable(program) {
			continue
		}
		tree := installationOf(program)
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.NotFound, "%s is not in the sandbox: on this machine it is %s, and the host image has only /usr", name, program),
			"bring it in: -v "+tree+":"+tree+":ro -e PATH="+dir+":/usr/local/bin:/usr/bin:/bin")
	}
	return err
}

func isExecutable(program string) bool {
	info, err := os.Stat(program)
	return err == nil && !info.IsDir() && info.Mode()&0o111 != 0
}

// installationOf guesses the directory that holds all a program needs: the one
// above bin, sbin or shims, links resolved when they lead elsewhere.
func installationOf(program string) string {
	dir := filepath.Dir(program)
	switch filepath.Base(dir) {
	case "bin", "sbin", "shims":
		return filepath.Dir(dir)
	}
	return dir
}
