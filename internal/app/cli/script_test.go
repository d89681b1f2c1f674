package cli_test

import (
	"context"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/sandpit-dev/sandpit/internal/app/cli"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

func TestMain(m *testing.M) {
	testscript.Main(docked{m}, map[string]func(){
		"sandpit": func() {
			ctx, stop := cli.WithSignals(context.Background())
			status := cli.Main(ctx, os.Args[1:])
			stop()
			os.Exit(status)
		},
	})
}

// docked are tests with a docker engine, which is ended after them.
type docked struct{ *testing.M }

func (d docked) Run() int { return testdocker.Main(d.M) }

// TestScripts runs the command line, with the race detector where the tests
// have it; only the engine is another program.
func TestScripts(t *testing.T) {
	t.Parallel()
	engine := testengine.Path(t)
	cache := filepath.Join(t.TempDir(), "cache") // images are made once for all scripts
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Setup: func(env *testscript.Env) error {
			env.Vars = append(env.Vars, testengine.Environ(env.WorkDir)...)
			env.Setenv("SANDPIT_CACHE_DIR", cache)
			env.Setenv(testengine.Variable, engine)
			return nil
		},
		Condition: func(name string) (bool, error) {
			switch name {
			case "dynamic":
				return isDynamic(t), nil
			case "root":
				return os.Geteuid() == 0, nil
			default:
				return false, fmt.Errorf("unknown condition %q", name)
			}
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"status": statusIs},
	})
}

// isDynamic reports whether this test binary, which plays the program, is
// linked dynamically, as it is with the race detector and wherever cgo is.
func isDynamic(t *testing.T) bool {
	t.Helper()
	f, err := elf.Open("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return slices.ContainsFunc(f.Progs, func(p *elf.Prog) bool { return p.Type == elf.PT_INTERP })
}

// statusIs runs a command and wants a certain exit status:
//
//	status 7 sandpit run -- sh -c 'exit 7'
func statusIs(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: status N COMMAND [ARG...]")
	}
	script := []string{"-c", `"$@"; got=$?; [ $got = "$0" ] || { echo "exit status $got, want $0" >&2; exit 1; }`}
	if err := ts.Exec("sh", append(script, args...)...); err != nil {
		ts.Fatalf("%v", err)
	}
}
