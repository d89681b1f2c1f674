package gvisor_test

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testuser"
)

// TestRulesHoldForOrdinaryUser has a user without rights try what root tries in
// TestRulesHoldInRestoredKernels: its engine is another one, but the rules are the same. What
// the machine does not let that user limit is refused.
func TestRulesHoldForOrdinaryUser(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("repeats another test")
	}
	if os.Geteuid() != 0 {
		t.Skip("the test itself is run by one")
	}
	dir := t.TempDir()
	if err := errors.Join(os.Chmod(filepath.Dir(dir), 0o755), os.Chown(dir, testuser.ID, testuser.ID)); err != nil {
		t.Fatal(err)
	}
	const name = "TestRulesHoldInRestoredKernels"
	cmd := exec.CommandContext(t.Context(), lend(t, os.Args[0], dir, "test"), "-test.run=^"+name+"$", "-test.v")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "HOME="+dir, "SANDPIT_ENGINE="+lend(t, testengine.Path(t), dir, "engine"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: testuser.ID, Gid: testuser.ID}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: "+name+"/rules/resumed/network") {
		t.Errorf("%v\n%s", err, out)
	}
}

// lend gives a program a place where every user may run it, and returns that.
func lend(t *testing.T, path, dir, name string) string {
	t.Helper()
	place := filepath.Join(dir, name)
	if os.Link(path, place) == nil {
		return place
	}
	from, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer from.Close()
	to, err := os.OpenFile(place, os.O_CREATE|os.O_WRONLY, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(to, from); err != nil {
		t.Fatal(err)
	}
	if err := to.Close(); err != nil {
		t.Fatal(err)
	}
	return place
}
