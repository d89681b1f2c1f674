package cli_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// TestPythonModules runs the interpreter's own tests on the machine and in a
// sandbox, at the same time: most of it is waiting. SANDPIT_TEST_PYTHON=1 adds those that take a minute.
func TestPythonModules(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const python = "/usr/bin/python3"
	if err := exec.CommandContext(t.Context(), python, "-c", "import test.test_json").Run(); err != nil {
		testengine.Skip(t, "%s does not have its own tests (Debian: libpython3.11-testsuite, or the like)", python)
	}
	modules := []string{"test_json", "test_threading", "test_re", "test_subprocess"}
	switch {
	case testing.Short():
		modules = modules[:1]
	case os.Getenv("SANDPIT_TEST_PYTHON") != "1":
		modules = modules[:2]
	}
	for _, module := range modules {
		t.Run(module, func(t *testing.T) {
			args := []string{python, "-m", "test", "-v", module}
			machine := exec.CommandContext(t.Context(), args[0], args[1:]...)
			machine.Dir = t.TempDir()
			sandbox := w.command(append([]string{"run", "--timeout", "10m", "--"}, args...)...)
			var want, got map[string]string
			var both sync.WaitGroup
			both.Go(func() { want = testResults(t, machine) })
			both.Go(func() { got = testResults(t, sandbox) })
			both.Wait()
			if len(want) < 10 || len(got) == 0 {
				t.Fatalf("only %d tests ran on the machine, %d in the sandbox", len(want), len(got))
			}
			for name, result := range want {
				if reason, known := explained[name]; known {
					t.Logf("%s: %s on the machine, %s in the sandbox: %s", name, result, got[name], reason)
					delete(want, name)
					delete(got, name)
				}
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("machine (-) and sandbox (+) differ:\n%s", diff)
			}
			t.Logf("%d tests with the same result", len(want))
		})
	}
}

// TestPythonSQLite works on a database with several processes. Distributions
// leave the module's own tests out.
func TestPythonSQLite(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const python = "/usr/bin/python3"
	if err := exec.CommandContext(t.Context(), python, "-c", "import sqlite3, multiprocessing").Run(); err != nil {
		testengine.Skip(t, "%s has no sqlite3", python)
	}
	program := readFile(t, filepath.Join("testdata", "sqlite.py"))
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	machine := exec.CommandContext(ctx, python, "-", filepath.Join(t.TempDir(), "db"))
	machine.Stdin = bytes.NewReader(program)
	want, err := machine.CombinedOutput()
	if err != nil || !bytes.HasSuffix(want, []byte("done\n")) {
		t.Fatalf("on the machine: %v\n%s", err, want)
	}
	box := w.command("run", "-i", "--", python, "-", "/tmp/db")
	box.Stdin = bytes.NewReader(program)
	got, err := box.CombinedOutput()
	if err != nil || string(got) != string(want) {
		t.Errorf("in the sandbox: %v\n%s", err, cmp.Diff(string(want), string(got)))
	}
}

// explained are the tests that end differently in a sandbox, and why.
var explained = map[string]string{
	"test_restore_signals (test.test_subprocess.POSIXProcessTestCase.test_restore_signals)": "it reads the line SigIgn of " +
		"/proc/self/status, which gVisor does not have, and skips itself without",
	"test_preexec_fork_failure (test.test_subprocess.POSIXProcessTestCase.test_preexec_fork_failure)": "it needs a limit " +
		"on processes, which does not bind root, in the sandbox or out of it, and skips itself without",
}

var testLine = regexp.MustCompile(`(?m)^(test\w+ \([\w.]+\)).*?\.\.\. (ok|FAIL|ERROR|skipped|expected failure)`)

// testResults maps each test's name to its result. A test's own output may
// stand between the two.
func testResults(t *testing.T, cmd *exec.Cmd) map[string]string {
	t.Helper()
	out, _ := cmd.CombinedOutput() // what failed is in the output
	results := make(map[string]string)
	for _, m := range testLine.FindAllSubmatch(out, -1) {
		results[string(m[1])] = string(m[2])
	}
	if len(results) == 0 {
		t.Errorf("no results in:\n%s", out)
	}
	return results
}

func TestCompileAndRunC(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	if _, err := exec.LookPath("/usr/bin/gcc"); err != nil {
		testengine.Skip(t, "this machine has no /usr/bin/gcc")
	}
	const program = `#include <stdio.h>
#include <math.h>
int main(void) { printf("%.3f\n", sqrt(2)); return 5; }
`
	w.expectOutput(t, program, "1.414\n", 5, "sh", "-c",
		"cat > a.c && gcc -O2 -Wall a.c -lm -o a && ./a")
}

func TestCompileAndRunGo(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	const goTool = "/usr/local/go/bin/go"
	if _, err := exec.LookPath(goTool); err != nil {
		testengine.Skip(t, "this machine has no %s", goTool)
	}
	const program = `package main

import ("fmt"; "os"; "sync")

func main() {
	var wg sync.WaitGroup
	var mu sync.Mutex
	sum := 0
	for i := range 100 {
		wg.Go(func() { mu.Lock(); defer mu.Unlock(); sum += i })
	}
	wg.Wait()
	fmt.Println(sum)
	os.Exit(6)
}
`
	w.expectOutput(t, program, "4950\n", 6, "sh", "-c",
		"cat > a.go && "+goTool+" build -o a a.go && ./a")
}

// TestTreeOfFiles unpacks, searches and packs 10,000 files.
func TestTreeOfFiles(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	dir := filepath.Join(t.TempDir(), "tree")
	var want []string
	for i := range 10000 {
		name := fmt.Sprintf("d%02d/f%04d", i%100, i)
		path := filepath.Join(dir, name)
		if i < 100 {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
		}
		text := fmt.Sprintf("file %d\n", i)
		if i%1000 == 7 {
			text += "needle\n"
			want = append(want, name)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pack := exec.CommandContext(t.Context(), "tar", "-C", dir, "--sort=name", "-cf", "-", ".")
	packed, err := pack.Output()
	if err != nil {
		t.Fatal(err)
	}
	cmd := w.command("run", "-i", "--", "sh", "-c",
		"tar xf - && find . -type f | wc -l >&2 && grep -rl needle . | sort >&2 && tar --sort=name -cf - .")
	cmd.Stdin = bytes.NewReader(packed)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &stderr)
	}
	slices.Sort(want)
	if got, want := stderr.String(), "10000\n./"+strings.Join(want, "\n./")+"\n"; got != want {
		t.Errorf("counted and found %q, want %q", got, want)
	}
	back := t.TempDir()
	unpack := exec.CommandContext(t.Context(), "tar", "-C", back, "-xf", "-")
	unpack.Stdin = &stdout
	if out, err := unpack.CombinedOutput(); err != nil {
		t.Fatalf("unpack: %v\n%s", err, out)
	}
	if out, err := exec.CommandContext(t.Context(), "diff", "-r", dir, back).CombinedOutput(); err != nil {
		t.Errorf("the tree changed on its way: %v\n%s", err, out)
	}
}

// TestStreams sends random bytes through a sandbox.
func TestStreams(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	size := int64(256 << 20)
	if testing.Short() {
		size = 64 << 20
	}
	if text := os.Getenv("SANDPIT_TEST_STREAM_MIB"); text != "" {
		mib, err := strconv.Atoi(text)
		if err != nil {
			t.Fatal(err)
		}
		size = int64(mib) << 20
	}
	sent := sha256.New()
	received := sha256.New()
	cmd := w.command("run", "-i", "--", "cat")
	cmd.Stdin = io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), size), sent)
	cmd.Stdout = received
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	took := timeOf(t, func() {
		if err := cmd.Run(); err != nil {
			t.Fatalf("%v\n%s", err, &stderr)
		}
	})
	if !bytes.Equal(sent.Sum(nil), received.Sum(nil)) {
		t.Error("the bytes changed on their way")
	}
	t.Logf("%d MiB in and out in %s: %.0f MiB/s", size>>20, took, float64(size>>20)/took.Seconds())
}

// expectOutput runs a command with input and compares what comes out.
func (w *world) expectOutput(t *testing.T, input, output string, status int, command ...string) {
	t.Helper()
	cmd := w.command(append([]string{"run", "-i", "--"}, command...)...)
	cmd.Stdin = strings.NewReader(input)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if got := cmd.ProcessState.ExitCode(); got != status || stdout.String() != output {
		t.Errorf("%v, exit status %d and output %q, want %d and %q\n%s", err, got, &stdout, status, output, &stderr)
	}
}
