package interpreter_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
	"github.com/sandpit-dev/sandpit/internal/testing/testgvisor"
)

// remoteRun runs bash in a sandbox, or Python in contexts that are named so.
func remoteRun(tb testing.TB, r *interpreter.Remote, name, code string) *told {
	tb.Helper()
	language := interpreter.Bash
	if strings.HasPrefix(name, interpreter.Python) {
		language = interpreter.Python
	}
	ctx, cancel := context.WithTimeout(tb.Context(), long)
	defer cancel()
	got := &told{}
	cell := interpreter.Cell{Context: name, Language: language, Code: code}
	if err := r.Run(ctx, cell, got.take); err != nil {
		tb.Errorf("%.100s: %v", code, err)
	}
	return got
}

// TestRemote goes through the life of an interpreter in a real sandbox.
func TestRemote(t *testing.T) {
	t.Parallel()
	box := testgvisor.Box(t)
	var mu sync.Mutex
	env := map[string]string{"A": "one"}
	r := interpreter.NewRemote(box.Guest(), interpreter.RemoteOptions{Environ: func() map[string]string {
		mu.Lock()
		defer mu.Unlock()
		return map[string]string{"A": env["A"]}
	}})
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	if got := remoteRun(t, r, "x", "v=1; echo $A; echo err >&2; false"); got.stdout != "one\n" || got.stderr != "err\n" || got.failure == nil || !got.ended {
		t.Errorf("%+v", got)
	}
	mu.Lock()
	env["A"] = "two"
	mu.Unlock()
	if got := remoteRun(t, r, "x", "echo $A $v"); got.stdout != "two 1\n" || got.count != 2 {
		t.Errorf("the same context: %+v", got)
	}
	if got := remoteRun(t, r, "y", "echo .$v"); got.stdout != ".\n" {
		t.Errorf("another context: %+v", got)
	}
	runWithEnv(t, r)
	large := "#" + strings.Repeat("x", 400_000) + "\n"
	if got := remoteRun(t, r, "python", large+"print('x' * 500_000)"); len(got.stdout) != 500_001 {
		t.Errorf("%d bytes of output", len(got.stdout))
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			if got := remoteRun(t, r, "python", large+"print('here')"); got.stdout != "here\n" {
				t.Errorf("one of many: %+v", got)
			}
		})
	}
	all.Wait()
	if err := r.Restart(t.Context(), "x"); err != nil {
		t.Error(err)
	}
	if got := remoteRun(t, r, "x", "echo .$v"); got.stdout != ".\n" {
		t.Errorf("after a restart: %+v", got)
	}
	if err := errors.Join(r.Remove(t.Context(), "x"), r.Remove(t.Context(), "none")); err != nil {
		t.Error(err)
	}
	err := r.Run(t.Context(), interpreter.Cell{Context: "z", Language: "cobol"}, (&told{}).take)
	if sandpit.CodeOf(err) != sandpit.Unsupported {
		t.Errorf("an unknown language: %v", err)
	}
	cutRemote(t, r)
	killRemote(t, r, box)
}

// runWithEnv runs cells with an environment and a directory of their own.
func runWithEnv(t *testing.T, r *interpreter.Remote) {
	t.Helper()
	for _, tc := range []struct {
		cell interpreter.Cell
		want string
	}{
		{interpreter.Cell{Dir: "/usr", Env: map[string]string{"OWN": "yes"}}, "yes /usr\n"},
		{interpreter.Cell{Dir: "/etc"}, " /usr\n"}, // the context has its directory already
	} {
		tc.cell.Context, tc.cell.Language, tc.cell.Code = "env", interpreter.Bash, `echo "$OWN $PWD"`
		got := &told{}
		if err := r.Run(t.Context(), tc.cell, got.take); err != nil || got.stdout != tc.want {
			t.Errorf("%+v: %q, error %v, want %q", tc.cell, got.stdout, err, tc.want)
		}
	}
}

// cutRemote gives up runs, by the context and because the output is refused.
func cutRemote(t *testing.T, r *interpreter.Remote) {
	t.Helper()
	remoteRun(t, r, "cut", "v=kept")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	got, begun := &told{}, time.Time{}
	err := r.Run(ctx, interpreter.Cell{Context: "cut", Language: interpreter.Bash, Code: "echo on; sleep 600"}, func(e interpreter.Event) error {
		if err := got.take(e); err != nil {
			return err
		}
		if got.stdout == "on\n" && begun.IsZero() {
			begun = time.Now()
			cancel()
		}
		return nil
	})
	if !errors.Is(err, context.Canceled) || got.stdout != "on\n" || time.Since(begun) > 10*time.Second {
		t.Errorf("%v after %v: %+v", err, time.Since(begun), got)
	}
	full := errors.New("full")
	err = r.Run(t.Context(), interpreter.Cell{Context: "cut", Language: interpreter.Bash, Code: "yes"}, func(e interpreter.Event) error {
		if _, ok := e.(interpreter.Output); ok {
			return full
		}
		return nil
	})
	if !errors.Is(err, full) {
		t.Errorf("a refused run: %v", err)
	}
	if got := remoteRun(t, r, "cut", "echo $v"); !strings.HasSuffix(got.stdout, "kept\n") {
		t.Errorf("afterwards: %.100q", got.stdout)
	}
}

// killRemote ends the service from within, while it runs something and between two runs, and stops it.
func killRemote(t *testing.T, r *interpreter.Remote, box sandpit.Instance) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	err := r.Run(ctx, interpreter.Cell{Context: "k", Language: interpreter.Bash, Code: "v=1; kill -9 $PPID; sleep 600"}, (&told{}).take)
	if sandpit.CodeOf(err) != sandpit.Unavailable || !strings.Contains(err.Error(), "variables are lost") {
		t.Errorf("a run that ends its service: %v", err)
	}
	if got := remoteRun(t, r, "k", "echo .$v; (until [ -e /tmp/over ]; do sleep 0.05; done; kill -9 $PPID) >/dev/null 2>&1 &"); got.stdout != ".\n" || got.stderr != "" {
		t.Errorf("the run after that: %+v", got)
	}
	if err := box.Guest().WriteFile(ctx, "", "/tmp/over", strings.NewReader(""), sandpit.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	for left := 1; left > 0; time.Sleep(10 * time.Millisecond) { // until ctx ends
		all, err := box.Guest().ListProcesses(ctx)
		if err != nil {
			t.Fatal(err)
		}
		left = len(all)
	}
	if got := remoteRun(t, r, "k", "echo .$v"); got.stdout != ".\n" || !strings.Contains(got.stderr, "variables of earlier runs are lost") {
		t.Errorf("the run after a death in between: %+v", got)
	}
	before, err := box.Guest().ListProcesses(ctx)
	if err != nil || len(before) != 1 {
		t.Errorf("%d processes, %v: want one interpreter", len(before), err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
	if left, err := box.Guest().ListProcesses(ctx); err != nil || len(left) != 0 {
		t.Errorf("left after closing: %+v, %v", left, err)
	}
	if err := r.Run(ctx, interpreter.Cell{Language: interpreter.Bash}, (&told{}).take); sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("a closed one: %v", err)
	}
}
