package gvisor_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/gvisor"
)

func lasting(c *gvisor.Config) { c.Lasting = true }

// lastingOwnerVariable has TestLastingOwner be an owner in the named directory.
const lastingOwnerVariable = "SANDPIT_TEST_LASTING_OWNER"

// TestLastingOwner is not a test by itself: it is the process that
// TestSandboxOutlivesItsOwner kills.
func TestLastingOwner(t *testing.T) {
	dir := os.Getenv(lastingOwnerVariable)
	if dir == "" {
		t.Skip("only run by another test")
	}
	p := newProviderWith(t, dir, lasting)
	box := create(t, p, sandpit.Spec{Labels: map[string]string{"of": "owner"}})
	output(t, box, "echo kept > /workspace/file; sleep 1000 & echo $! > /workspace/pid")
	if err := json.NewEncoder(os.Stderr).Encode(box.Handle()); err != nil {
		t.Fatal(err)
	}
	_ = unix.Kill(os.Getpid(), unix.SIGKILL)
}

// TestSandboxOutlivesItsOwner kills the process that created a sandbox and continues
// with the sandbox; when that is gone, nothing is left.
func TestSandboxOutlivesItsOwner(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	owner := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLastingOwner$")
	owner.Env = append(os.Environ(), lastingOwnerVariable+"="+dir)
	var words bytes.Buffer
	owner.Stderr = &words
	err := owner.Run()
	if owner.ProcessState == nil || owner.ProcessState.Exited() {
		t.Fatalf("the owner was not killed: %v, %s", err, words.String())
	}
	var handle []byte
	if err := json.NewDecoder(&words).Decode(&handle); err != nil {
		t.Fatal(err)
	}

	p := newProviderWith(t, dir, lasting)
	time.Sleep(2 * time.Second) // longer than an engine without sandboxes lasts
	list, err := p.List(t.Context())
	if err != nil || len(list) != 1 || list[0].Spec.Labels["of"] != "owner" || !bytes.Equal(list[0].Handle, handle) {
		t.Fatalf("list: %+v, %v", list, err)
	}
	box, err := p.Attach(t.Context(), handle)
	if err != nil {
		t.Fatal(err)
	}
	if got := output(t, box, "cat /workspace/file; kill -0 $(cat /workspace/pid) && echo alive"); got != "kept\nalive" {
		t.Errorf("inside: %q", got)
	}
	if err := box.Destroy(t.Context()); err != nil {
		t.Fatal(err)
	}
	awaitEmpty(t, filepath.Join(dir, "run", "engines"))
}

// TestLastingProviderCloses closes a provider while it has a sandbox, and one
// that has none.
func TestLastingProviderCloses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	first := newProviderWith(t, dir, lasting)
	box := create(t, first, sandpit.Spec{})
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := first.Create(t.Context(), sandpit.NewID(), sandpit.Spec{}); sandpit.CodeOf(err) != sandpit.Unavailable {
		t.Errorf("create after close: %v", err)
	}
	second := newProviderWith(t, dir, lasting)
	again, err := second.Attach(t.Context(), box.Handle())
	if err != nil {
		t.Fatal(err)
	}
	output(t, again, "true")
	other := create(t, second, sandpit.Spec{}) // in an engine of its own
	for _, b := range []sandpit.Instance{again, other} {
		if err := b.Destroy(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	awaitEmpty(t, filepath.Join(dir, "run", "engines"))
}

// awaitEmpty waits until a directory has no entries any more.
func awaitEmpty(t *testing.T, dir string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		entries, err := os.ReadDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(entries) == 0 {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			t.Fatalf("left in %s: %v", dir, entries)
		}
	}
}
