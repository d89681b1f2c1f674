package testserver

import (
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// Timeout bounds a command and a request, and the time that an engine needs to end.
const Timeout = 2 * time.Minute

// Installation is a server that clients need a key for, in directories of its own, and the command
// line of its machine. It ends with the test, with all its sandboxes.
type Installation struct {
	*Server

	CommandLine

	// Dir is the parent of the server's state, cache and runtime directories.
	Dir string

	environ []string // of the server
}

// Options describe an Installation.
type Options struct {
	// Settings are variables of the server's environment, besides those that every Installation has.
	Settings []string
	// Launcher is the command that starts the server; see Start. Default: none.
	Launcher []string
}

// Install starts a server on a free port. When the test ends, it deletes all sandboxes, ends the
// server, and reports engines that remain.
func Install(tb testing.TB, o Options) *Installation {
	tb.Helper()
	i := &Installation{Dir: tb.TempDir()}
	i.environ = slices.Concat(testengine.Environ(i.Dir),
		[]string{"SANDPIT_SERVER_LISTEN=127.0.0.1:0", "SANDPIT_SERVER_KEYLESS=false", "SANDPIT_SERVER_DRAIN=1"}, o.Settings)
	// The socket gives the rights of an administrator without a key.
	i.CommandLine = CommandLine{append(slices.Clone(i.environ), "SANDPIT_URL=unix://"+filepath.Join(i.runtimeDir(), "sandpit.sock"))}
	i.Server = Start(tb, i.environ, o.Launcher...)
	tb.Cleanup(func() { i.close(tb) })
	return i
}

// Restart starts another server in the directories, without the launcher. The caller has ended the
// one before.
func (i *Installation) Restart(tb testing.TB) {
	tb.Helper()
	i.Server = Start(tb, i.environ)
}

// NewKey creates a key of an owner. Flags are further ones of the command, such as --admin.
func (i *Installation) NewKey(tb testing.TB, owner string, flags ...string) string {
	tb.Helper()
	return strings.TrimSpace(i.Output(tb, append([]string{"key", "create", "-q", "--owner", owner}, flags...)...))
}

func (i *Installation) runtimeDir() string { return filepath.Join(i.Dir, "run") }

// close deletes the sandboxes first, because they outlive their server.
func (i *Installation) close(tb testing.TB) {
	tb.Helper()
	if out, status := i.Run(tb, "", "rm", "--all", "-f"); status != 0 {
		tb.Errorf("delete all sandboxes: exit status %d: %s", status, out)
	}
	i.End(tb, syscall.SIGTERM)
	i.awaitEngines(tb)
	if tb.Failed() {
		tb.Logf("log of the server in %s:\n%.20000s", i.Dir, i.Log)
	}
}

// awaitEngines waits for engines to end, which they do soon after their last sandbox.
func (i *Installation) awaitEngines(tb testing.TB) {
	tb.Helper()
	for end := time.Now().Add(Timeout); ; time.Sleep(50 * time.Millisecond) {
		left, err := filepath.Glob(filepath.Join(i.runtimeDir(), "engines", "*"))
		if err != nil {
			tb.Fatal(err)
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(end) {
			tb.Errorf("engines are left: %v", left)
			return
		}
	}
}
