package e2b_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testing/testsdk"
)

var update = flag.Bool("update", false, "write docs/e2b-compatibility.md")

// document is where people read what works.
const document = "../../docs/e2b-compatibility.md"

// newest is the version of the SDK that the *.test.mjs files are for, and versions are
// those with which compat.mjs is run, as package.json names them.
const newest = "2.51.0"

func versions() []string { return []string{newest, "2.45.0", "2.39.0", "2.30.5", "2.20.1", "2.12.1"} }

// variable, set to 1, has all versions of the SDK run, which takes minutes.
const variable = "SANDPIT_TEST_E2B_VERSIONS"

// TestVersions does with each version of the SDK, the code interpreter's and E2B's
// command line what programs and people do with them, and holds the document to it.
func TestVersions(t *testing.T) {
	t.Parallel()
	if os.Getenv(variable) != "1" && !*update {
		t.Skipf("it takes minutes; set %s=1", variable)
	}
	testsdk.Need(t, "node", "npm")
	server, dir := newServer(t), testsdk.Install(t, "versions")
	var mu sync.Mutex
	table := make(map[string][]testsdk.Result)
	t.Run("run", func(t *testing.T) {
		for _, version := range versions() {
			t.Run(version, func(t *testing.T) {
				t.Parallel()
				name := "e2b-" + version
				if version == newest {
					name = "e2b"
				}
				list := testsdk.Run(t, dir, append(server.clientEnviron(), "SDK="+name), patience, "compat.mjs")
				for _, r := range list {
					t.Run(r.Name, r.Report)
				}
				mu.Lock()
				defer mu.Unlock()
				table[version] = list
			})
		}
	})
	interpreter := testsdk.Run(t, dir, server.clientEnviron(), patience, "interpreter.mjs")
	for _, r := range interpreter {
		t.Run(r.Name, r.Report)
	}
	cli := testCLI(t, server, dir)
	tables := testsdk.Versions("`e2b`", versions(), table) + "\n" +
		testsdk.List("`@e2b/code-interpreter` 2.8.0, `@e2b/cli` 2.19.0", append(interpreter, cli...))
	testsdk.CheckDocument(t, document, "<!-- written by the tests of conformance/e2b -->\n", tables, *update)
}

// testCLI does with E2B's command line what people do with it.
func testCLI(t *testing.T, server *server, dir string) (list []testsdk.Result) {
	t.Helper()
	run := func(args ...string) (string, error) {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		cmd := exec.CommandContext(ctx, filepath.Join(dir, "node_modules", ".bin", "e2b"), args...)
		cmd.Env, cmd.WaitDelay = append(server.clientEnviron(), "NO_COLOR=1"), 10*time.Second
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	made, err := run("sandbox", "create", "--detach", "--timeout", "600", "base")
	if err != nil {
		t.Errorf("create: %v\n%s", err, made)
		return nil
	}
	id := strings.TrimSpace(made)
	for _, step := range []struct {
		name, want string
		args       []string
	}{
		{"e2b sandbox list", id, []string{"sandbox", "list"}},
		{"e2b sandbox info", "State: running", []string{"sandbox", "info", id}},
		{"e2b sandbox exec", "hello\n", []string{"sandbox", "exec", id, "echo", "hello"}},
		{"e2b sandbox metrics", "Memory", []string{"sandbox", "metrics", id}},
		{"e2b sandbox logs", "create", []string{"sandbox", "logs", id}},
		{"e2b sandbox pause", "paused", []string{"sandbox", "pause", id}},
		{"e2b sandbox resume", "resumed", []string{"sandbox", "resume", id}},
		{"e2b sandbox kill", "killed", []string{"sandbox", "kill", id}},
		{"e2b template list", "base", []string{"template", "list"}},
	} {
		r := testsdk.Result{Name: step.name}
		if out, err := run(step.args...); err != nil || !strings.Contains(out, step.want) {
			r.Error = fmt.Sprintf("%v: %s; want %q", err, out, step.want)
		}
		t.Run(step.name, r.Report)
		list = append(list, r)
	}
	return list
}
