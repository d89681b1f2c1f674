package testengine

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// listSources lists every source directory of the module. The result of a test that starts the engine
// depends on all of them, but "go test" does not know that and would use the cached result of an
// earlier engine. It does record which directories of the module a test lists, and runs the test
// again when a file in them changes. listSources skips unreadable directories.
func listSources() {
	root, ok := findModule()
	if !ok {
		return // a test binary that runs without "go test", so nothing is cached
	}
	_ = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() || path == root {
			return nil //nolint:nilerr // see above
		}
		if name := entry.Name(); strings.HasPrefix(name, ".") || name == "testdata" || name == "node_modules" {
			return fs.SkipDir // not part of the engine, and tests write there
		}
		return nil
	})
}

// findModule returns the directory of go.mod, at or above the working directory, which
// is the package's when "go test" runs a test.
func findModule() (dir string, ok bool) {
	dir, err := os.Getwd()
	if err != nil {
		return "", false
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, true
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", false
		}
		dir = parent
	}
}
