package gvisor_test

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// stopOwnerVariable has TestStopOwner work in the named directory.
const stopOwnerVariable = "SANDPIT_TEST_STOP_OWNER"

// TestStopOwner is not a test by itself: it is the process that
// TestStopSurvivesKills kills.
func TestStopOwner(t *testing.T) {
	dir, handle, _ := strings.Cut(os.Getenv(stopOwnerVariable), "|")
	if dir == "" {
		t.Skip("only run by another test")
	}
	raw, err := base64.StdEncoding.DecodeString(handle)
	if err != nil {
		t.Fatal(err)
	}
	box, err := newProviderWith(t, dir, lasting).Attach(t.Context(), raw)
	if err != nil {
		t.Fatal(err)
	}
	first, err := strconv.Atoi(output(t, box, "cat /workspace/count"))
	if err != nil {
		t.Fatal(err)
	}
	for i := first + 1; ; i++ { // until it is killed
		output(t, box, fmt.Sprintf("echo %d > /workspace/count", i))
		fmt.Fprintln(os.Stderr, "wrote", i)
		stopOf(t, box)
		startOf(t, box)
	}
}

// TestStopSurvivesKills kills the process that stops and starts a sandbox, at any
// moment, and continues with the sandbox. SANDPIT_TEST_STOP_KILLS says how often; the
// default is for every day.
func TestStopSurvivesKills(t *testing.T) {
	t.Parallel()
	kills := 3
	if text := os.Getenv("SANDPIT_TEST_STOP_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	p := newProviderWith(t, dir, lasting)
	box := create(t, p, sandpit.Spec{})
	output(t, box, "echo 0 > /workspace/count; busybox head -c 3000000 /dev/urandom > /large")
	sum := output(t, box, "busybox sha256sum /large")
	found := map[string]int{}
	for range kills {
		wrote := killOwner(t, dir, box.Handle())
		var err error
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
		p = newProviderWith(t, dir, lasting)
		if box, err = p.Attach(t.Context(), box.Handle()); err != nil {
			t.Fatal(err)
		}
		found[wake(t, box)]++
		count, err := strconv.Atoi(output(t, box, "cat /workspace/count"))
		if err != nil || count < wrote || count > wrote+1 {
			t.Fatalf("count is %d, %v; the killed process wrote %d", count, err, wrote)
		}
		if got := output(t, box, "busybox sha256sum /large"); got != sum {
			t.Fatalf("the large file is %s, was %s", got, sum)
		}
	}
	t.Logf("found: %v", found)
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	newProviderWith(t, dir, lasting) // which removes what the killed have left
	awaitEmpty(t, filepath.Join(dir, "run", "engines"))
	expectNothingKept(t, dir)
}

func killOwner(t *testing.T, dir string, handle []byte) (wrote int) {
	t.Helper()
	return killOwnerOf(t, "TestStopOwner", stopOwnerVariable, dir, handle)
}

// killOwnerOf starts the process that a test is, kills it after a while and returns what
// it wrote last.
func killOwnerOf(t *testing.T, test, variable, dir string, handle []byte) (wrote int) {
	t.Helper()
	owner := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+test+"$")
	owner.Env = append(os.Environ(), variable+"="+dir+"|"+base64.StdEncoding.EncodeToString(handle))
	stderr, err := owner.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := owner.Start(); err != nil {
		t.Fatal(err)
	}
	var rest []string
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		n, isCount := strings.CutPrefix(lines.Text(), "wrote ")
		if !isCount {
			rest = append(rest, lines.Text())
			continue
		}
		if wrote == 0 { // the end may come in the first cycle, or a few later
			time.AfterFunc(time.Duration(rand.IntN(1000))*time.Millisecond, func() { _ = owner.Process.Kill() })
		}
		if wrote, err = strconv.Atoi(n); err != nil {
			t.Fatal(err)
		}
	}
	_ = owner.Wait() // it was killed
	if owner.ProcessState.Exited() || wrote == 0 {
		t.Fatalf("the owner was not killed: %v\n%s", owner.ProcessState, strings.Join(rest, "\n"))
	}
	return wrote
}

// wake brings a sandbox to run whose owner was killed, and returns how it was found.
func wake(t *testing.T, box sandpit.Instance) string {
	t.Helper()
	err := box.(sandpit.Stopper).Start(t.Context())
	if err == nil {
		return "stopped"
	}
	if sandpit.CodeOf(err) != sandpit.Conflict {
		t.Fatalf("start: %v", err)
	}
	err = box.(sandpit.Pauser).Resume(t.Context())
	if err == nil {
		return "paused"
	}
	if sandpit.CodeOf(err) != sandpit.Conflict {
		t.Fatalf("resume: %v", err)
	}
	return "running"
}

// TestKernelKilledWhileStopping kills the sandbox's kernel while it is stopped. It is
// then stopped, with everything, or gone as any sandbox whose kernel is killed.
func TestKernelKilledWhileStopping(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	for range 4 {
		box := create(t, p, sandpit.Spec{})
		output(t, box, "echo kept > /file; busybox head -c 20000000 /dev/urandom > /large")
		killed := make(chan bool, 1)
		time.AfterFunc(time.Duration(rand.IntN(200))*time.Millisecond, func() { killed <- killKernelOf(box.ID()) })
		err := box.(sandpit.Stopper).Stop(t.Context())
		<-killed
		if err == nil {
			startOf(t, box)
			if got := output(t, box, "cat /file"); got != "kept" {
				t.Errorf("got %q", got)
			}
		} else if _, err := box.Wait(t.Context()); err != nil {
			t.Errorf("wait for the end: %v", err)
		}
		if err := box.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

// TestKernelKilledWhileStarting kills the new kernel: the sandbox is stopped as before.
func TestKernelKilledWhileStarting(t *testing.T) {
	t.Parallel()
	p := newProvider(t, t.TempDir())
	failed := 0
	for range 3 {
		box := create(t, p, sandpit.Spec{})
		output(t, box, "echo kept > /file")
		stopOf(t, box)
		started := make(chan error, 1)
		go func() { started <- box.(sandpit.Stopper).Start(t.Context()) }()
		for len(started) == 0 && !killKernelOf(box.ID()) {
			time.Sleep(time.Millisecond)
		}
		if err := <-started; err != nil { // else it ran already when it was killed
			failed++
			list, err := p.List(t.Context())
			if err != nil || len(list) != 1 {
				t.Errorf("list: %+v, %v", list, err)
			}
			startOf(t, box)
			if got := output(t, box, "cat /file"); got != "kept" {
				t.Errorf("got %q", got)
			}
		}
		if err := box.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d of 3 starts failed", failed)
}
