// Package testengine gives tests the static program with the engine, which a test binary cannot be,
// because it may be linked with the race detector or cgo.
package testengine

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Variable is the path of a built engine. Without it, tests build one and keep it in the user's cache
// directory.
const Variable = "SANDPIT_ENGINE"

// requireVariable, set to 1, makes a test with a missing requirement fail instead of being skipped.
const requireVariable = "SANDPIT_REQUIRE"

// Skip skips the test because of a missing requirement, or fails it if all are required.
func Skip(tb testing.TB, format string, args ...any) {
	tb.Helper()
	if os.Getenv(requireVariable) == "1" {
		tb.Fatalf("required here: "+format, args...)
	}
	tb.Skipf(format, args...)
}

// Path returns the engine's path. It skips the test on a machine where no sandbox can start, with the
// reason that the engine reports.
func Path(tb testing.TB) string {
	tb.Helper()
	path, err := built()
	if err != nil {
		tb.Fatal(err)
	}
	if out, err := works(); err != nil {
		Skip(tb, "sandboxes do not work on this machine:\n%s", out)
	}
	return path
}

// built and works run once for all tests of a package.
var (
	built = sync.OnceValues(build)
	works = sync.OnceValues(tryOut)
)

func build() (string, error) {
	listSources()
	if path := os.Getenv(Variable); path != "" {
		return path, nil
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(cache, "sandpit-test")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return "", err
	}
	defer lock.Close() // packages are tested in parallel, and one of them builds
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", err
	}
	path := filepath.Join(dir, "sandpit")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-o", path, "github.com/sandpit-dev/sandpit/cmd/sandpit")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the engine: %w\n%s", err, out)
	}
	return path, nil
}

func tryOut() (string, error) {
	path, err := built()
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "sandpit-doctor-")
	if err != nil {
		return "", err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, "doctor")
	cmd.Env = Environ(dir)
	out, err := cmd.CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// Environ returns an environment for the engine in which all of its directories are below dir. An
// engine with the race detector then exits at once, instead of waiting a second for races of other
// threads.
func Environ(dir string) []string {
	return []string{
		"GORACE=atexit_sleep_ms=0",
		"PATH=" + os.Getenv("PATH"),
		"HOME=" + filepath.Join(dir, "home"),
		"SANDPIT_CONFIG=" + os.DevNull,
		"SANDPIT_STATE_DIR=" + filepath.Join(dir, "state"),
		"SANDPIT_CACHE_DIR=" + filepath.Join(dir, "cache"),
		"SANDPIT_RUNTIME_DIR=" + filepath.Join(dir, "run"),
	}
}

// Limits returns default limits for providers in tests.
func Limits() sandpit.Resources {
	return sandpit.Resources{Memory: 512 << 20, CPUs: 1, Disk: 10 << 30, PIDs: 1024}
}
