package docker

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/moby/moby/api/types/container"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
)

// withNumbers returns o with numbers and times that are required.
func withNumbers(o Options) Options {
	o.Defaults = sandpit.Resources{Memory: 512 << 20, CPUs: 1, Disk: 10 << 30, PIDs: 1024}
	o.TmpfsSize, o.ShmSize, o.OpenFiles = 256<<20, 64<<20, 8192
	o.PullTimeout, o.CallTimeout, o.Patience, o.StopGrace = time.Minute, time.Minute, time.Minute, time.Second
	return o
}

func TestExitOf(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		state  container.State
		killed bool
		want   string
	}{
		"out of memory":                        {container.State{ExitCode: 137, OOMKilled: true}, false, "killed: out of memory"},
		"killed after a program ran out of it": {container.State{ExitCode: 137, OOMKilled: true}, true, "killed by another program"},
		"a program ran out of it":              {container.State{ExitCode: 0, OOMKilled: true}, false, "stopped by another program"},
		"killed":                               {container.State{ExitCode: 137}, false, "killed by another program"},
		"stopped":                              {container.State{}, false, "stopped by another program"},
		"a bad image":                          {container.State{ExitCode: 127, Error: "exec format error"}, false, "could not run: exec format error"},
		"anything else":                        {container.State{ExitCode: 3}, false, "its first process exited with status 3"},
	} {
		if got := exitOf(tc.state, tc.killed); !got.Known || got.Code != tc.state.ExitCode || !strings.HasPrefix(got.Reason, tc.want) {
			t.Errorf("%s: %+v, want %q", name, got, tc.want)
		}
	}
}

// An engine may be restarted, and take containers with it.
func TestEndingWhileAway(t *testing.T) {
	t.Parallel()
	p, err := New(withNumbers(Options{Ephemeral: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b, err := p.sandboxes.ensureSandbox(p, sandpit.NewID(), strings.Repeat("a", 64))
	if err != nil {
		t.Fatal(err)
	}
	p.events.breaks.Add(1)
	b.applyEngineState(container.State{Running: true}, b.moveCount())
	if got := b.exitReason(container.State{ExitCode: 137}).Reason; got != "killed by another program" {
		t.Errorf("seen running since: %q", got)
	}
	p.events.breaks.Add(1)
	if got := b.exitReason(container.State{ExitCode: 137}).Reason; !strings.HasPrefix(got, "it ended while the docker engine was restarted") {
		t.Errorf("not seen since: %q", got)
	}
}

// TestAttachToRemovedContainer attaches to a container that was removed in the meantime.
func TestAttachToRemovedContainer(t *testing.T) {
	t.Parallel()
	p, err := New(withNumbers(Options{Endpoint: Endpoint{Host: testdocker.Host(t)}, Ephemeral: true}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	b, err := p.sandboxes.ensureSandbox(p, sandpit.NewID(), strings.Repeat("a", 64))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.attachStream(t.Context()); !errors.Is(err, sandpit.NotFound) {
		t.Errorf("attach: %v, want not found", err)
	}
}

// TestUnreachable checks that the error contains the reason, the address and a hint, and no password.
func TestUnreachable(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	dead := filepath.Join(dir, "dead.sock")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	if err := ln.Close(); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ host, text, hint string }{
		"no socket":         {"unix://" + dir + "/none.sock", "no such socket", "systemctl start docker"},
		"no listener":       {"unix://" + dead, "does not answer", "systemctl start docker"},
		"no engine":         {"tcp://127.0.0.1:1", "does not answer", "docker version"},
		"a password inside": {"tcp://me:s3cret@127.0.0.1:1", "127.0.0.1:1", "docker version"},
	}
	if os.Geteuid() != 0 {
		closed := filepath.Join(dir, "closed.sock")
		if err := errors.Join(os.Link(dead, closed), os.Chmod(closed, 0)); err != nil {
			t.Fatal(err)
		}
		cases["not for this user"] = struct{ host, text, hint string }{"unix://" + closed, "permission denied", "usermod"}
	}
	for name, tc := range cases {
		p, err := New(withNumbers(Options{Endpoint: Endpoint{Host: tc.host}, Ephemeral: true}))
		if err != nil {
			t.Fatal(err)
		}
		err = p.Check(t.Context())
		if !errors.Is(err, sandpit.Unavailable) || !strings.Contains(err.Error(), tc.text) || !strings.Contains(sandpit.HintOf(err), tc.hint) ||
			strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v (hint %q)", name, err, sandpit.HintOf(err))
		}
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestLimitsDisk(t *testing.T) {
	t.Parallel()
	fs := func(name string) [][2]string { return [][2]string{{"Backing Filesystem", name}} }
	for _, tc := range []struct {
		driver string
		status [][2]string
		want   bool
	}{
		{"overlay2", fs("extfs"), false}, {"overlay2", fs("xfs"), true}, {"btrfs", nil, true}, {"overlay2", nil, true}, {"zfs", fs("zfs"), true},
	} {
		if got := limitsDisk(tc.driver, tc.status); got != tc.want {
			t.Errorf("%s on %v: %v", tc.driver, tc.status, got)
		}
	}
}

func TestCapabilities(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{"SYS_PTRACE": true, "NET_RAW": true, "SYS_ADMIN": false, "ALL": false, "SYS_MODULE": false, "": false} {
		if err := checkCapabilities([]string{name}); (err == nil) != ok || err != nil && !errors.Is(err, sandpit.Invalid) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestStaleAnswer has the engine tell of a container as it was before it was started.
func TestStaleAnswer(t *testing.T) {
	t.Parallel()
	p, err := New(withNumbers(Options{StateDir: t.TempDir()}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = p.Close() })
	b, err := p.sandboxes.ensureSandbox(p, sandpit.NewID(), strings.Repeat("a", 64))
	if err != nil {
		t.Fatal(err)
	}
	asked := b.moveCount()
	b.recordChange(running)
	b.applyEngineState(container.State{Status: container.StateExited}, asked)
	if now := b.currentState(); now != running {
		t.Errorf("it is %s, want %s", now, running)
	}
	b.applyEngineState(container.State{Status: container.StateExited}, b.moveCount())
	if now := b.currentState(); now != over {
		t.Errorf("it is %s, want %s", now, over)
	}
}

func TestHearers(t *testing.T) {
	t.Parallel()
	var h progressListeners
	var mu sync.Mutex
	heard := map[string]int64{}
	hear := func(who string) func(int64, int64) {
		return func(done, _ int64) {
			mu.Lock()
			defer mu.Unlock()
			heard[who] += done
		}
	}
	one, other := h.addListener("a", hear("one")), h.addListener("a", hear("other"))
	elsewhere := h.addListener("b", hear("elsewhere"))
	h.notifyListeners("a", 1, 10)
	one()
	h.notifyListeners("a", 2, 10)
	other()
	elsewhere()
	h.notifyListeners("a", 4, 10)
	if heard["one"] != 1 || heard["other"] != 3 || heard["elsewhere"] != 0 || len(h.list) != 0 {
		t.Errorf("heard: %v, list %v", heard, h.list)
	}
}

// TestInterruptedStart has a container run whose guest did not get its key: the sandbox is stopped,
// and not one whose commands all fail.
func TestInterruptedStart(t *testing.T) {
	t.Parallel()
	p, err := New(withNumbers(Options{Ephemeral: true}))
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	b, err := p.sandboxes.ensureSandbox(p, sandpit.NewID(), strings.Repeat("a", 64))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		unsettled bool
		want      state
	}{{true, stopped}, {false, running}} {
		b.setUnsettled(tc.unsettled)
		b.applyEngineState(container.State{Running: true, Status: container.StateRunning}, b.moveCount())
		if got := b.currentState(); got != tc.want {
			t.Errorf("a container that runs, unsettled %t: the sandbox is %s, want %s", tc.unsettled, got, tc.want)
		}
	}
}
