package e2b_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
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
	needNode(t)
	server, dir := newServer(t), install(t, "versions")
	var mu sync.Mutex
	table := make(map[string][]result)
	t.Run("run", func(t *testing.T) {
		for _, version := range versions() {
			t.Run(version, func(t *testing.T) {
				t.Parallel()
				name := "e2b-" + version
				if version == newest {
					name = "e2b"
				}
				list := runProgram(t, server, dir, "compat.mjs", "SDK="+name)
				for _, r := range list {
					t.Run(r.Name, r.report)
				}
				mu.Lock()
				defer mu.Unlock()
				table[version] = list
			})
		}
	})
	interpreter := runProgram(t, server, dir, "interpreter.mjs")
	for _, r := range interpreter {
		t.Run(r.Name, r.report)
	}
	cli := testCLI(t, server, dir)
	checkDocument(t, render(table, append(interpreter, cli...)))
}

// runProgram runs a script that prints results.
func runProgram(t *testing.T, server *server, dir, script string, environ ...string) []result {
	t.Helper()
	return runProgramIn(t, append(server.clientEnviron(), environ...), dir, script)
}

// runProgramIn runs one in an environment.
func runProgramIn(t *testing.T, environ []string, dir, script string) []result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "node", script)
	cmd.Dir, cmd.Env, cmd.WaitDelay = dir, environ, 10*time.Second
	var out, diagnostics bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &diagnostics
	if err := cmd.Run(); err != nil {
		t.Errorf("%s: %v\n%s", script, err, &diagnostics)
	}
	return decode(t, &out)
}

// testCLI does with E2B's command line what people do with it.
func testCLI(t *testing.T, server *server, dir string) (list []result) {
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
		r := result{Name: step.name}
		if out, err := run(step.args...); err != nil || !strings.Contains(out, step.want) {
			r.Error = fmt.Sprintf("%v: %s; want %q", err, out, step.want)
		}
		t.Run(step.name, r.report)
		list = append(list, r)
	}
	return list
}

// render writes the tables of the document.
func render(table map[string][]result, others []result) string {
	var b strings.Builder
	columns := versions()
	fmt.Fprintf(&b, "| `e2b` | %s |\n|---|%s\n", strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
	for i, r := range table[newest] {
		fmt.Fprintf(&b, "| %s |", r.Name)
		for _, version := range columns {
			word := "no"
			if list := table[version]; i < len(list) && list[i].Error == "" {
				word = "yes"
			}
			fmt.Fprintf(&b, " %s |", word)
		}
		b.WriteByte('\n')
	}
	b.WriteString("\n| `@e2b/code-interpreter` 2.8.0, `@e2b/cli` 2.19.0 | |\n|---|---|\n")
	for _, r := range others {
		word := "yes"
		if r.Error != "" {
			word = "no"
		}
		fmt.Fprintf(&b, "| %s | %s |\n", r.Name, word)
	}
	return b.String()
}

// The marks between which the tables are.
const (
	begin = "<!-- written by the tests of conformance/e2b -->\n"
	end   = "<!-- until here -->\n"
)

// checkDocument holds the tables of the document against what was found.
func checkDocument(t *testing.T, tables string) {
	t.Helper()
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, ok := strings.Cut(string(text), begin)
	have, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no marks", document)
	}
	if *update {
		if err := os.WriteFile(document, []byte(before+begin+tables+end+after), 0o600); err != nil {
			t.Fatal(err)
		}
		return
	}
	if have != tables {
		t.Errorf("%s says:\n%s\nand this is so:\n%s\n(-update writes it)", document, have, tables)
	}
	if slices.Contains(strings.Fields(tables), "no") {
		t.Error("something does not work that did")
	}
}
