package interpreter

import (
	"context"
	"encoding/json"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// plainKernel starts a Python kernel that has the standard library alone.
func plainKernel(tb testing.TB) *kernel {
	tb.Helper()
	if out, err := exec.CommandContext(tb.Context(), "python3", "-S", "-c", "import ast, asyncio").CombinedOutput(); err != nil {
		testengine.Skip(tb, "this machine cannot run Python: %v\n%s", err, out)
	}
	l := python
	l.command = slices.Insert(slices.Clone(l.command), 1, "-S")
	k, err := startKernel(tb.Context(), l, tb.TempDir(), nil)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(k.close)
	return k
}

// said runs a cell and returns all that it tells, in the order of kinds: results, output, failure.
func said(tb testing.TB, k *kernel, code string) string {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), time.Minute)
	defer cancel()
	var results, output, failure strings.Builder
	err := k.executeJob(ctx, job{Code: code}, func(e Event) error {
		switch e := e.(type) {
		case Result:
			results.WriteString("[" + plainText(e.Text) + plainText(e.HTML) + plainText(e.PNG) + "]")
		case Output:
			output.WriteString(e.Text)
		case Failure:
			failure.WriteString("!" + e.Name + ": " + e.Value + "\n" + e.Traceback)
		}
		return nil
	})
	if err != nil {
		tb.Fatalf("%s: %v", code, err)
	}
	return results.String() + output.String() + failure.String()
}

func plainText(raw json.RawMessage) string {
	var s string
	_ = json.Unmarshal(raw, &s) // what is no text compares with none
	return s
}

// TestPlainPython runs cells where there is no IPython.
func TestPlainPython(t *testing.T) {
	t.Parallel()
	k := plainKernel(t)
	const drawn = `
import sys, types
class Figure:
    def savefig(self, to, format, bbox_inches): to.write(b"png")
    def get_axes(self): return []
    def __repr__(self): return "<figure>"
open_figures = {1: Figure()}
fake = types.ModuleType("matplotlib.pyplot")
fake.get_fignums = lambda: list(open_figures)
fake.figure = open_figures.get
fake.close = lambda figure: open_figures.clear()
sys.modules["matplotlib.pyplot"] = fake
None`
	for _, c := range []struct{ code, want string }{
		{"x = 1", ""},
		{"x += 1\nx", "[2]"},
		{"_ + 1", "[3]"},
		{"    def f():\n        return 'text'\n    f()", "[text]"},
		{"print('out')", "out\n"},
		{"import asyncio\nawait asyncio.sleep(0, 'awaited')", "[awaited]"},
		{"async def g():\n  return 5\nawait g()", "[5]"},
		{"", ""},
		{"None", ""},
		{"1/0", "!ZeroDivisionError: division by zero\nTraceback (most recent call last):\n  File \"<cell 10>\", line 1, in <module>\n    1/0\n*"},
		{"import IPython", "!ModuleNotFoundError: No module named 'IPython'\n*"},
		{"def (", "!SyntaxError: invalid syntax (<cell 12>, line 1)\n*"},
		{"input('?')", "!RuntimeError: input is not supported here, because no person can answer\n*"},
		{"raise SystemExit(3)", "!SystemExit: 3\n*"},
		{"class H:\n  def _repr_html_(self): return '<b>'\n  def __repr__(self): return 'H'\nH()", "[H<b>]"},
		{"display(H(), 7)\nH", "[H<b>][7][<class '__main__.H'>]"},
		{"import pickle; pickle.loads(pickle.dumps(H()))", "[H<b>]"},
		{"class Bad:\n  def __repr__(self): raise ValueError('no')\nBad()", "!ValueError: no\n*"},
		{drawn, "[<figure>cG5n]"},
		{"x", "[2]"},
		{"exit()", ""},
	} {
		got := said(t, k, c.code)
		if want, cut := strings.CutSuffix(c.want, "*"); got != c.want && (!cut || !strings.HasPrefix(got, want)) {
			t.Errorf("%s\n%s\nwant\n%s", c.code, got, c.want)
		}
	}
	if k.isAlive() {
		t.Error("exit() has not ended the kernel")
	}
}

// TestPlainInterrupt interrupts a cell where there is no IPython.
func TestPlainInterrupt(t *testing.T) {
	t.Parallel()
	k := plainKernel(t)
	if got := said(t, k, "x = 7"); got != "" {
		t.Error(got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	begun, failure := time.Now(), ""
	err := k.executeJob(ctx, job{Code: "while True: pass"}, func(e Event) error {
		if f, ok := e.(Failure); ok {
			failure = f.Name
		}
		return nil
	})
	if failure != "KeyboardInterrupt" || ctx.Err() == nil || err == nil {
		t.Errorf("after %v: %v, failure %q", time.Since(begun), err, failure)
	}
	if got := said(t, k, "x"); got != "[7]" {
		t.Errorf("afterwards %q", got)
	}
}
