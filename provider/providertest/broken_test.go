package providertest_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/provider/fake"
	"github.com/sandpit-dev/sandpit/provider/providertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const brokenVariable = "SANDPIT_TEST_BROKEN"

// TestBroken runs, in processes of their own, checks on providers that are
// broken in one way each. They must fail, and pass on one that is not broken.
func TestBroken(t *testing.T) {
	t.Parallel()
	defects := defects()
	if name := os.Getenv(brokenVariable); name != "" {
		runSuite(t, defects[name])
		return
	}
	for name, d := range defects {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if out, err := runAgain(t, d.check, "-"); err != nil {
				t.Fatalf("%s fails on a provider that is not broken: %v\n%s", d.check, err, out)
			}
			out, err := runAgain(t, d.check, name)
			if err == nil || !strings.Contains(out, "--- FAIL: TestBroken") || strings.Contains(out, "panic:") {
				t.Errorf("%s does not notice: %v\n%s", d.check, err, out)
			}
		})
	}
}

// runAgain runs one check of the suite in another process.
func runAgain(t *testing.T, check, defect string) (output string, err error) {
	t.Helper()
	subtest := strings.ReplaceAll(check, " ", "_")
	pattern := "^TestBroken$/^" + strings.ReplaceAll(subtest, "/", "$/^") + "$"
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run="+pattern, "-test.timeout=1m", "-test.v")
	cmd.Env = append(os.Environ(), brokenVariable+"="+defect)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err = cmd.Run()
	if strings.Contains(out.String(), "--- SKIP: TestBroken/"+subtest) {
		t.Skipf("this machine lacks something for %s:\n%s", check, out.String())
	}
	if err == nil && !strings.Contains(out.String(), "--- PASS: TestBroken/"+subtest) {
		t.Fatalf("there is no check %s that runs:\n%s", check, out.String())
	}
	return out.String(), err
}

// runSuite runs the suite on a provider with a defect.
func runSuite(t *testing.T, d defect) {
	t.Helper()
	open := func(t *testing.T, w *fake.World) sandpit.Provider {
		t.Helper()
		p := w.NewProvider()
		t.Cleanup(func() { _ = p.Close() })
		return &provider{Provider: p, defect: d}
	}
	var worlds []*fake.World
	providertest.Run(t, providertest.Harness{
		New: func(t *testing.T) sandpit.Provider {
			t.Helper()
			w := fake.NewWorld(t.TempDir())
			t.Cleanup(func() { _ = w.Close() })
			worlds = append(worlds, w)
			return open(t, w)
		},
		Reopen: func(t *testing.T, p sandpit.Provider) sandpit.Provider {
			t.Helper()
			own, ok := p.(*provider)
			if !ok {
				t.Fatalf("a provider of another kind: %T", p)
			}
			return open(t, own.World())
		},
		Leftovers: func(*testing.T) []string {
			left := d.left
			for _, w := range worlds {
				left = append(left, w.Leftovers()...)
			}
			return left
		},
		Patience: 5 * time.Second,
	})
}
