package testuser_test

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
	"github.com/sandpit-dev/sandpit/internal/testing/testuser"
)

// rootsFile names a file that FuzzRights must not be able to change.
const rootsFile = "SANDPIT_TEST_ROOTS_FILE"

// FuzzRights tries to change a file of root's. It fails where it can, and so does the test
// below.
func FuzzRights(f *testing.F) {
	testuser.Drop(f)
	name := os.Getenv(rootsFile)
	f.Add(1)
	f.Fuzz(func(t *testing.T, _ int) {
		if name == "" {
			return
		}
		if err := os.WriteFile(name, []byte("changed"), 0o600); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("%s could be changed: %v", name, err)
		}
		if err := os.WriteFile(filepath.Join(t.TempDir(), "x"), nil, 0o600); err != nil {
			t.Error(err)
		}
		if _, err := os.ReadDir("/proc/self/fd"); err != nil {
			t.Error(err)
		}
	})
}

// TestWorkerIsNobody has go test run that target as root, as the nightly tests do.
func TestWorkerIsNobody(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		testengine.Skip(t, "only root's workers give up rights")
	}
	name := filepath.Join(t.TempDir(), "root's")
	if err := os.WriteFile(name, []byte("root's"), 0o600); err != nil {
		t.Fatal(err)
	}
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, "-test.run=^$", "-test.fuzz=^FuzzRights$", "-test.fuzztime=20x", "-test.parallel=1", "-test.fuzzcachedir="+t.TempDir())
	cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), rootsFile+"="+name)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
	if text, err := os.ReadFile(name); err != nil || string(text) != "root's" {
		t.Errorf("the file says %q, %v", text, err)
	}
}
