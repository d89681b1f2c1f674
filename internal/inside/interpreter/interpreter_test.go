package interpreter_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// long is how long anything may take that is not under test.
const long = time.Minute

func TestMain(m *testing.M) {
	// Debian's Python is the one that Debian's packages are for.
	if err := os.Setenv("PATH", "/usr/bin:/bin:"+os.Getenv("PATH")); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// need skips the test where a language has no kernel.
func need(tb testing.TB, language string) {
	tb.Helper()
	probe := map[string][]string{
		interpreter.Python:     {"python3", "-c", "from importlib.util import find_spec\nfor m in 'IPython', 'matplotlib', 'matplotlib_inline', 'pandas': find_spec(m).name"},
		interpreter.JavaScript: {"node", "-e", ""},
		interpreter.TypeScript: {"node", "-e", "require('/usr/share/nodejs/typescript')"},
		interpreter.Bash:       {"bash", "-c", "true"},
	}[language]
	if out, err := exec.CommandContext(tb.Context(), probe[0], probe[1:]...).CombinedOutput(); err != nil {
		testengine.Skip(tb, "this machine cannot run %s: %v\n%s", language, err, out)
	}
}

func newService(tb testing.TB) *interpreter.Service {
	tb.Helper()
	s := interpreter.New(interpreter.Options{Dir: tb.TempDir()})
	tb.Cleanup(s.Close)
	return s
}

// told is what a run has told.
type told struct {
	stdout, stderr string
	results        []interpreter.Result
	failure        *interpreter.Failure
	count          int
	ended          bool
}

func (t *told) take(e interpreter.Event) error {
	switch e := e.(type) {
	case interpreter.Output:
		if e.Stream == interpreter.Stdout {
			t.stdout += e.Text
		} else {
			t.stderr += e.Text
		}
	case interpreter.Result:
		t.results = append(t.results, e)
	case interpreter.Failure:
		t.failure = &e
	case interpreter.Count:
		t.count = e.Number
	case interpreter.End:
		t.ended = true
	}
	return nil
}

// text is the text of the last result.
func (t *told) text() string {
	if len(t.results) == 0 {
		return ""
	}
	return text(t.results[len(t.results)-1].Text)
}

func text(raw json.RawMessage) string {
	var s string
	_ = json.Unmarshal(raw, &s) // what is no text compares with none
	return s
}

func run(tb testing.TB, s *interpreter.Service, req interpreter.Request) *told {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), long)
	defer cancel()
	got := &told{}
	if err := s.Run(ctx, req, got.take); err != nil {
		tb.Fatalf("run %.100q: %v", req.Code, err)
	}
	if !got.ended {
		tb.Errorf("run %.100q: no end", req.Code)
	}
	return got
}

// cell is one run and what it must tell.
type cell struct {
	code    string
	env     map[string]string
	text    string
	stdout  string
	stderr  string
	failure string // its name and value begin so
}

func (c cell) check(t *testing.T, got *told) {
	t.Helper()
	if got.text() != c.text || got.stdout != c.stdout || got.stderr != c.stderr {
		t.Errorf("%s\ntext %q, stdout %q, stderr %q\nwant %q, %q, %q", c.code, got.text(), got.stdout, got.stderr, c.text, c.stdout, c.stderr)
	}
	failure := ""
	if got.failure != nil {
		failure = got.failure.Name + ": " + got.failure.Value
	}
	if !strings.HasPrefix(failure, c.failure) || c.failure == "" && failure != "" {
		t.Errorf("%s\nfailure %q, want %q", c.code, failure, c.failure)
	}
}

// TestCells runs cells of each language, one after the other in one context.
func TestCells(t *testing.T) {
	t.Parallel()
	for language, cells := range map[string][]cell{
		interpreter.Python: {
			{code: "x = 1"},
			{code: "x += 1\nx", text: "2"},
			{code: "    def f():\n        return 'text'\n    f()", text: "text"},
			{code: "print('out'); import sys; print('err', file=sys.stderr)", stdout: "out\n", stderr: "err\n"},
			{code: "import os, subprocess; subprocess.run(['echo', 'child']); os.write(1, b'raw\\xff')", text: "4", stdout: "child\nraw\ufffd"},
			{code: "!echo shell", stdout: "shell\n"},
			{code: "import asyncio\nawait asyncio.sleep(0, 'awaited')", text: "awaited"},
			{code: "1/0", failure: "ZeroDivisionError: division by zero"},
			{code: "def (", failure: "SyntaxError: invalid syntax"},
			{code: "input('?')", failure: "RuntimeError: input is not supported here"},
			{code: "raise SystemExit(3)", stderr: "*", failure: "SystemExit: 3"},
			{code: "os.environ['A'], os.environ['B']", env: map[string]string{"A": "1", "B": "zwei ' \n"}, text: `('1', "zwei ' \n")`},
			{code: "os.environ.get('A')"},
			{code: "x", text: "2"},
			{code: "import sys; sys.stdin.read()", text: ""},
			{code: "print('😀' * 3, end='')", stdout: "😀😀😀"},
			{code: "float('nan')", text: "nan"},
			{code: "exit()"},
			{code: "x", failure: "NameError: name 'x' is not defined"},
		},
		interpreter.JavaScript: {
			{code: "const z = 1"},
			{code: "z", text: "1"},
			{code: "const z = 2; z", text: "2"},
			{code: "console.log('out'); console.error('err')", stdout: "out\n", stderr: "err\n"},
			{code: "async function main() { return 'Hello' }\nawait main()", text: "Hello"},
			{code: "class A { x = 1 }\nnew A()", text: "A { x: 1 }"},
			{code: "10n ** 20n", text: "100000000000000000000n"},
			{code: "null", text: "null"},
			{code: "{ a: 1 }", text: "{ a: 1 }"},
			{code: "  {\n  ['b']() { return 2 }\n}\n", text: "{ b: [Function: b] }"},
			{code: "{ let c = 3; c }", text: "3"},
			{code: "{ a: 1 };", text: "1"},
			{code: "({[Symbol.for('Jupyter.display')]() { return { 'text/plain': 'shown' } }})", text: "shown"},
			{code: "undefined"},
			{code: "1/0", text: "Infinity"},
			{code: "throw new TypeError('bad')", failure: "TypeError: bad"},
			{code: "await Promise.reject(new Error('late'))", failure: "Error: late"},
			{code: "throw 7", failure: "Error: 7"},
			{code: "1 +", failure: "SyntaxError: Unexpected end of input"},
			{code: "require('child_process').execFileSync('echo', ['child'], { stdio: 'inherit' }); 0", text: "0", stdout: "child\n"},
			{code: "process.env.A", env: map[string]string{"A": "1"}, text: "1"},
			{code: "String(process.env.A)", text: "undefined"},
			{code: "setTimeout(() => { throw new Error('nobody waits') }, 0); await new Promise(r => setTimeout(r, 50)); typeof z", text: "number", stderr: "*"},
			{code: "process.exit(3)", failure: "KernelDied: the kernel has ended (exit status 3)"},
			{code: "typeof z", text: "undefined"},
		},
		interpreter.Bash: {
			{code: "X=1; declare -A m=([a]=b); f() { echo f $1; }"},
			{code: "echo $X ${m[a]}; f 2; echo err >&2", stdout: "1 b\nf 2\n", stderr: "err\n"},
			{code: "cd /; pwd", stdout: "/\n"},
			{code: "pwd", stdout: "/\n"},
			{code: "(exit 3)", failure: "ExitCode: 3"},
			{code: "if", stderr: "*", failure: "ExitCode: 2"},
			{code: "echo $A$X", env: map[string]string{"A": "it's\n$X", "X": "7"}, stdout: "it's $X7\n"},
			{code: "echo ${A-none}$X", stdout: "none1\n"},
			{code: "cat", stdout: ""},
			{code: "for fd in 3 4 5 8 9; do [[ -e /proc/self/fd/$fd ]] && echo $fd; done; :"},
			{code: "return 3", stderr: "*", failure: "ExitCode: "},
			{code: "exit 4", failure: "KernelDied: the kernel has ended (exit status 4)"},
			{code: "echo ${X-gone}", stdout: "gone\n"},
		},
		interpreter.TypeScript: {
			{code: "function subtract(x: number, y: number): number {\n  return x - y;\n}\nsubtract(1, 2)", text: "-1"},
			{code: "interface P { a?: string }\nconst p: P = { a: 'x' }; await Promise.resolve(p.a)", text: "x"},
			{code: "import os, { EOL as eol } from 'node:os'\nimport * as path from 'path'\n[typeof os.cpus, eol, path.join('a', 'b')].join()", text: "function,\n,a/b"},
			{code: "export enum E { A = 4 }\nE.A", text: "4"},
			{code: "(await import('node:path')).basename('/a/import(b)')", text: "import(b)"},
			{code: "\n{\n  [Symbol.for('Jupyter.display')]() { return { 'text/plain': 'shown' } }\n}\n", text: "shown"},
			{code: "{ a: 1 as number, b: await Promise.resolve(2) }", text: "{ a: 1, b: 2 }"},
			{code: "{ let c: number = 3; c }", text: "3"},
			{code: "{ a: 1 };", text: "1"},
		},
	} {
		t.Run(language, func(t *testing.T) {
			t.Parallel()
			need(t, language)
			s := newService(t)
			for _, c := range cells {
				got := run(t, s, interpreter.Request{Code: c.code, Language: language, Env: c.env})
				if c.stderr == "*" && got.stderr != "" {
					got.stderr = "*"
				}
				c.check(t, got)
			}
		})
	}
}

// TestJSON has lists and dictionaries given as JSON, and only those that it can tell.
func TestJSON(t *testing.T) {
	t.Parallel()
	need(t, interpreter.Python)
	s := newService(t)
	run(t, s, interpreter.Request{Code: "import datetime, numpy, sys; loop = []; loop.append(loop)"})
	for code, want := range map[string]string{
		"[1, 'a', None, float('nan'), (2,)]":    `[1,"a",null,null,[2]]`,
		"{'a': {1: datetime.date(2024, 1, 2)}}": `{"a":{"1":"2024-01-02"}}`,
		"[numpy.arange(2), numpy.float32(0.5)]": `[[0,1],0.5]`,
		"[]":                                    `[]`,
		"[object()]":                            "",
		"{(1, 2): 3}":                           "",
		"loop":                                  "",
		"[list(range(200_000))] * 9":            "",
		"list(range(300_000))":                  "",
		"{1, 2}":                                "",
		"'text'":                                "",
	} {
		got := run(t, s, interpreter.Request{Code: code})
		if len(got.results) != 1 || got.failure != nil || got.stderr != "" {
			t.Errorf("%s: %d results, %+v, %s", code, len(got.results), got.failure, got.stderr)
			continue
		}
		var text bytes.Buffer
		if raw := got.results[0].JSON; raw != nil {
			if err := json.Compact(&text, raw); err != nil {
				t.Error(err)
			}
		}
		if text.String() != want {
			t.Errorf("%s: %.200s, want %s", code, &text, want)
		}
	}
}

// TestPictures has figures shown whatever backend the image names, and pictures that are saved by name.
func TestPictures(t *testing.T) {
	need(t, interpreter.Python)
	t.Parallel()
	agg := func(context.Context) (map[string]string, error) { return map[string]string{"MPLBACKEND": "Agg"}, nil }
	s := interpreter.New(interpreter.Options{Dir: t.TempDir(), Environ: agg})
	t.Cleanup(s.Close)
	run(t, s, interpreter.Request{Code: "from PIL import Image; import io; image = Image.new('RGBA', (4, 4))"})
	for code, want := range map[string]int{
		"image.save('a.png')":             1,
		"image.save(fp='b.png')":          1,
		"image.save(io.BytesIO(), 'png')": 0,
		"image.save('no/such.png')":       0,
		"image":                           1,
		"image.show()":                    1,
		"import matplotlib.pyplot as plt; plt.plot([1, 2]); plt.show()": 1,
	} {
		got, pictures := run(t, s, interpreter.Request{Code: code}), 0
		for _, r := range got.results {
			if r.PNG != nil {
				pictures++
			}
			if r.Chart != nil && !strings.Contains(string(r.Chart), `"type": "line"`) {
				t.Errorf("%s: %s", code, r.Chart)
			}
		}
		if pictures != want {
			t.Errorf("%s: %d pictures, want %d; %+v", code, pictures, want, got.failure)
		}
	}
}

// TestHostileKernels breaks every rule that a kernel has. The next run must be as if nothing had been.
func TestHostileKernels(t *testing.T) {
	t.Parallel()
	need(t, interpreter.Python)
	s := newService(t)
	for name, tc := range map[string]struct {
		code, failure string
	}{
		"no JSON":            {"import os, time; os.write(4, b'hello\\n'); time.sleep(60)", interpreter.FailKernel},
		"an endless line":    {"import os\nwhile True: os.write(4, b'x' * 65536)", interpreter.FailKernel},
		"killed":             {"import os; os.kill(os.getpid(), 9)", interpreter.FailKernel},
		"closed descriptors": {"import os, time; os.closerange(0, 100)", interpreter.FailKernel},
		"a crash":            {"import ctypes; ctypes.string_at(0)", interpreter.FailKernel},
		"a false end":        {"import os, sys; os.write(4, b'{\"type\":\"done\",\"id\":18446744073709551615}\\n'); sys.exit(1)", "SystemExit"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, err := s.Create(t.Context(), interpreter.Python, "")
			if err != nil {
				t.Fatal(err)
			}
			if got := run(t, s, interpreter.Request{Code: tc.code, Context: c.ID}); got.failure == nil || got.failure.Name != tc.failure {
				t.Errorf("failure %+v, want %s", got.failure, tc.failure)
			}
			if got := run(t, s, interpreter.Request{Code: "6*7", Context: c.ID}); got.text() != "42" {
				t.Errorf("afterwards: %+v", got)
			}
		})
	}
}

// TestKilledBetweenRuns ends kernels whose end was not noticed yet. The
// next run has a new one at once.
func TestKilledBetweenRuns(t *testing.T) {
	t.Parallel()
	need(t, interpreter.Bash)
	s := newService(t)
	for range 20 {
		pid, err := strconv.Atoi(strings.TrimSpace(run(t, s, interpreter.Request{Code: "echo $$", Language: interpreter.Bash}).stdout))
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		if got := run(t, s, interpreter.Request{Code: "echo new", Language: interpreter.Bash}); got.failure != nil || got.stdout != "new\n" {
			t.Fatalf("%+v", got)
		}
	}
}

// TestInterrupts gives up runs that go on for ever.
func TestInterrupts(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		language, before, code, after string
		want                          string
	}{
		"python sleeps":        {interpreter.Python, "x = 7", "import time; print('on'); time.sleep(600)", "x", "7"},
		"python runs":          {interpreter.Python, "x = 7", "print('on')\nwhile True: pass", "x", "7"},
		"python's child":       {interpreter.Python, "x = 7", "import subprocess; print('on'); subprocess.run(['sleep', '600'])", "x", "7"},
		"python resists":       {interpreter.Python, "x = 7", "while True:\n  try:\n    print('on')\n    while True: pass\n  except KeyboardInterrupt: pass", "'x' in globals()", "False"},
		"javascript waits":     {interpreter.JavaScript, "x = 7", "console.log('on'); await new Promise(() => {})", "x", "7"},
		"javascript runs":      {interpreter.JavaScript, "x = 7", "console.log('on'); for (;;) {}", "x", "7"},
		"javascript's promise": {interpreter.JavaScript, "x = 7", "console.log('on'); for (;;) await null", "x", "7"},
		"bash's child":         {interpreter.Bash, "x=7", "echo on; sleep 600", "echo -n $x", "7"},
		"bash runs":            {interpreter.Bash, "x=7", "echo on; while :; do :; done", "echo -n $x", "7"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			need(t, tc.language)
			s := newService(t)
			run(t, s, interpreter.Request{Code: tc.before, Language: tc.language})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			err := s.Run(ctx, interpreter.Request{Code: tc.code, Language: tc.language}, func(e interpreter.Event) error {
				if out, ok := e.(interpreter.Output); ok && strings.HasPrefix(out.Text, "on") {
					cancel()
				}
				return nil
			})
			if !errors.Is(err, context.Canceled) {
				t.Fatalf("the run ended with %v", err)
			}
			got := run(t, s, interpreter.Request{Code: tc.after, Language: tc.language})
			if all := got.text() + got.stdout; all != tc.want || got.failure != nil {
				t.Errorf("afterwards %q, %+v; want %q", all, got.failure, tc.want)
			}
		})
	}
}

// TestOutput has more output than any buffer, output of background threads, and results that are too large.
func TestOutput(t *testing.T) {
	t.Parallel()
	need(t, interpreter.Python)
	s := newService(t)
	python := func(code string) *told { return run(t, s, interpreter.Request{Code: code}) }
	if got := python("print('é' * 5_000_000)"); got.stdout != strings.Repeat("é", 5_000_000)+"\n" {
		t.Errorf("%d bytes of output", len(got.stdout))
	}
	over, printed := filepath.Join(t.TempDir(), "over"), filepath.Join(t.TempDir(), "printed")
	python(fmt.Sprintf(`
import fcntl, os, struct, termios, threading, time
def late():
    while not os.path.exists(%q): time.sleep(0.01)
    print('from the background')
    print('x' * 1_000_000, flush=True)
    while struct.unpack('i', fcntl.ioctl(1, termios.FIONREAD, bytes(4)))[0]: time.sleep(0.01) # not read yet
    open(%q, 'w').close()
t = threading.Thread(target=late); t.start()`, over, printed))
	if err := os.WriteFile(over, nil, 0o600); err != nil { // no run receives what it prints now
		t.Fatal(err)
	}
	awaitFile(t, printed)
	if got := python("t.join()"); len(got.stdout) != 64<<10 || strings.Trim(got.stdout, "x\n") != "" {
		t.Errorf("%d bytes of output from between runs, want the last 65536", len(got.stdout))
	}
	got := python("from IPython.display import HTML, display\ndisplay(HTML('x' * (9 << 20)))\n'rest'")
	if len(got.results) != 2 || got.results[0].HTML != nil || got.text() != "rest" || !strings.Contains(got.stderr, "text/html of 9437186 bytes left out") {
		t.Errorf("%d results, the last %q; stderr %q", len(got.results), got.text(), got.stderr)
	}
	// A process that has the pipes open does not keep the kernel's end from being noticed.
	got = python("import subprocess, os; subprocess.Popen(['sleep', '2'], start_new_session=True); os._exit(5)")
	if got.failure == nil || got.failure.Name != interpreter.FailKernel {
		t.Errorf("failure %+v", got.failure)
	}
}

// awaitFile waits until a file exists.
func awaitFile(t *testing.T, path string) {
	t.Helper()
	for end := time.Now().Add(long); ; time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat(path); err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s does not exist", path)
		}
	}
}

// TestContexts makes, restarts and removes contexts.
func TestContexts(t *testing.T) {
	t.Parallel()
	need(t, interpreter.Bash)
	s, dir := newService(t), t.TempDir()
	if err := s.Prepare(t.Context(), interpreter.Bash); err != nil {
		t.Fatal(err)
	}
	c, err := s.Create(t.Context(), "BASH ", dir)
	if err != nil {
		t.Fatal(err)
	}
	all := s.Contexts()
	if len(all) != 2 || all[1] != c || c.Dir != dir || c.Language != interpreter.Bash {
		t.Errorf("contexts %+v, want the new one last: %+v", all, c)
	}
	inside := func(code string) string { return run(t, s, interpreter.Request{Code: code, Context: c.ID}).stdout }
	if got := inside("pwd; x=1"); got != dir+"\n" {
		t.Errorf("it works in %q", got)
	}
	pid := strings.TrimSpace(inside("echo $$"))
	if err := s.Restart(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if got := inside("echo ${x-none}"); got != "none\n" {
		t.Errorf("after a restart: %q", got)
	}
	if _, err := os.Stat(filepath.Join("/proc", pid)); !os.IsNotExist(err) {
		t.Errorf("the old kernel is there: %v", err)
	}
	begun, cut := filepath.Join(dir, "begun"), make(chan *told, 1)
	go func() {
		got := &told{}
		_ = s.Run(t.Context(), interpreter.Request{Code: "echo on > begun; sleep 600", Context: c.ID}, got.take)
		cut <- got
	}()
	awaitFile(t, begun)
	if err := s.Remove(c.ID); err != nil {
		t.Fatal(err)
	}
	if got := <-cut; got.failure == nil || got.failure.Name != interpreter.FailKernel {
		t.Errorf("the run whose context was removed: %+v", got)
	}
	if slices.Contains(s.Contexts(), c) {
		t.Error("it is still listed")
	}
}

func TestRefusals(t *testing.T) {
	t.Parallel()
	s := newService(t)
	for name, tc := range map[string]struct {
		req  interpreter.Request
		code sandpit.Code
	}{
		"both":           {interpreter.Request{Context: "x", Language: "python"}, sandpit.Invalid},
		"no context":     {interpreter.Request{Context: "x"}, sandpit.NotFound},
		"no language":    {interpreter.Request{Language: "cobol"}, sandpit.Unsupported},
		"a bad variable": {interpreter.Request{Env: map[string]string{"A=": ""}}, sandpit.Invalid},
		"not for bash":   {interpreter.Request{Language: "bash", Env: map[string]string{"A;reboot": ""}}, sandpit.Invalid},
		"NUL for bash":   {interpreter.Request{Language: "bash", Code: "a\x00b"}, sandpit.Invalid},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if err := s.Run(t.Context(), tc.req, (&told{}).take); sandpit.CodeOf(err) != tc.code {
				t.Errorf("%v, want %s", err, tc.code)
			}
		})
	}
	if _, err := s.Create(t.Context(), interpreter.Bash, "/nowhere"); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("a missing directory: %v", err)
	}
	if err := s.Remove("x"); sandpit.CodeOf(err) != sandpit.NotFound {
		t.Errorf("removing nothing: %v", err)
	}
}
