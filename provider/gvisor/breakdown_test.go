package gvisor_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

// TestBrokenEngineSaysWhy breaks engines down: a caller that uses a sandbox in one hears how
// it ended and what it said, and so does a caller that waits for the sandbox's end.
func TestBrokenEngineSaysWhy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	lost := make(chan string, 10)
	p := newProviderWith(t, dir, func(c *gvisor.Config) { c.EngineLost = func(words string) { lost <- words } })
	files := filepath.Join(dir, "run", "broken")
	for sig, want := range map[syscall.Signal]string{
		syscall.SIGABRT: `the sandbox's engine broke down: exit status 2, "SIGABRT: abort`, // Go's own words for it
		syscall.SIGKILL: "the sandbox's engine broke down: signal: killed",
	} {
		box := create(t, p, sandpit.Spec{})
		name := engineOf(t, dir)
		breakEngine(t, dir, sig)
		_, err := box.(sandpit.Statser).Stats(t.Context())
		if sandpit.CodeOf(err) != sandpit.Gone || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: ask: %v, want %s", sig, err, want)
		}
		if hint := sandpit.HintOf(err); hint != "its log is in "+filepath.Join(files, name) {
			t.Errorf("%v: hint %q", sig, hint)
		}
		exit, err := box.Wait(t.Context())
		if err != nil || !strings.HasPrefix(exit.Reason, want) || len(exit.Reason) > 500 {
			t.Errorf("%v: wait: %+v, %v", sig, exit, err)
		}
		_, err = p.Attach(t.Context(), box.Handle()) // as a process started later
		if sandpit.CodeOf(err) != sandpit.NotFound || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: attach: %v, want %s", sig, err, want)
		}
		words, err := os.ReadFile(filepath.Join(files, name))
		if err != nil || (sig == syscall.SIGABRT) != bytes.Contains(words, []byte("\ngoroutine ")) {
			t.Errorf("%v: left %q, %v", sig, words, err)
		}
		select {
		case text := <-lost:
			if (sig == syscall.SIGABRT) != strings.Contains(text, "SIGABRT") {
				t.Errorf("%v: the owner sees %q", sig, text)
			}
		case <-time.After(30 * time.Second):
			t.Errorf("%v: the owner is not told", sig)
		}
		awaitEmpty(t, filepath.Join(dir, "run", "engines")) // from then on there is another one
	}
	before := len(list(t, files))
	destroy(t, create(t, p, sandpit.Spec{}))
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if len(lost) > 0 {
		t.Errorf("of an engine that ended as it should the owner sees %q", <-lost)
	}
	if left := list(t, files); len(left) != before {
		t.Errorf("an engine that ended as it should has left %v", left)
	}
}

// engineOf is the name of the only engine below dir.
func engineOf(t *testing.T, dir string) string {
	t.Helper()
	engines := list(t, filepath.Join(dir, "run", "engines"))
	if len(engines) != 1 {
		t.Fatalf("engines: %v", engines)
	}
	return engines[0].Name()
}

// breakEngine sends a signal to the engine below dir.
func breakEngine(t *testing.T, dir string, sig syscall.Signal) {
	t.Helper()
	reaper := []byte("sandpit-reaper\x00" + dir + "/")
	for _, pid := range descendants(os.Getpid()) {
		if args, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline")); !bytes.HasPrefix(args, reaper) {
			continue // another's, or ended meanwhile
		}
		below := descendants(pid)
		i := slices.IndexFunc(below, func(pid int) bool {
			args, _ := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "cmdline"))
			return bytes.HasPrefix(args, []byte("sandpit-engine\x00"))
		})
		if i < 0 {
			break
		}
		if err := syscall.Kill(below[i], sig); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("there is no engine below %s", dir)
}
