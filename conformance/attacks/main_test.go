package attacks_test

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

// longVariable, set to 1, makes floods higher and races longer.
const longVariable = "SANDPIT_TEST_ATTACKS_LONG"

// canaryVariable is in the environment of this process, and so of the engine's
// parents; no sandbox may see it.
const canaryVariable = "SANDPIT_TEST_CANARY"

var update = flag.Bool("update", false, "rewrite docs/attacks.md")

func TestMain(m *testing.M) {
	// Here and not in a test: engines inherit it, and tests run side by side.
	if err := os.Setenv(canaryVariable, "canary-"+rand.Text()); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

func isLong() bool { return os.Getenv(longVariable) == "1" }

// attacker builds the program that attacks. It links nothing of the system's,
// as there may be nothing of it inside.
var attacker = sync.OnceValues(func() ([]byte, error) {
	dir, err := os.MkdirTemp("", "sandpit-attacker-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "attacker")
	cmd := exec.CommandContext(context.Background(), "go", "build", "-ldflags=-s -w", "-o", path, "./testdata/attacker")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, out)
	}
	return os.ReadFile(path)
})

// TestAttackerStaysInside starts the attacker on this machine, where it must
// refuse to do anything.
func TestAttackerStaysInside(t *testing.T) {
	t.Parallel()
	program, err := attacker()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "attacker")
	if err := os.WriteFile(path, program, 0o700); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, "host-name", "{}").CombinedOutput()
	if err == nil || !strings.Contains(string(out), "this is no sandbox") {
		t.Errorf("got %v\n%s", err, out)
	}
}
