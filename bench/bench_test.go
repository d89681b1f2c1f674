package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

func TestMain(m *testing.M) {
	if os.Getenv(victimVariable) != "" { // it starts itself, as the bench does
		os.Exit(bench(nil, os.Stdout, os.Stderr))
	}
	goleak.VerifyTestMain(m)
}

// TestKit measures everything, small, with sandpit and without Docker.
func TestKit(t *testing.T) {
	t.Parallel()
	if _, err := staticBusybox(); err != nil {
		testengine.Skip(t, "%v", err)
	}
	dir := t.TempDir()
	lines, page := filepath.Join(dir, "run.jsonl"), filepath.Join(dir, "run.md")
	var stdout, stderr bytes.Buffer
	code := bench([]string{
		"-quick", "-n", "2", "-no-docker", "-engine", testengine.Path(t), "-json", lines, "-md", page,
	}, &stdout, &stderr)
	if code != 0 {
		t.Fatalf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
	content, err := os.ReadFile(lines)
	if err != nil {
		t.Fatal(err)
	}
	r := readReport(t, content)
	for _, want := range []string{
		metricFirst, metricExec, "destroy", "2000 system calls", "upload 1 MB", "100 small files out",
		"4 creates at once, all", metricLateCreate, metricConnect, metricReceive, metricSend, metricPage, atBoxes("memory per idle box, loss of MemAvailable", 4),
	} {
		x, ok := r.find(want, bySandpit)
		if !ok {
			t.Errorf("no figure for %q", want)
		}
		if x.N < 1 || x.P50 <= 0 && x.Unit != unitMB { // what is free may grow meanwhile
			t.Errorf("%q: %+v", want, x)
		}
	}
	for metric, least := range map[string]int{metricPage: 2, fmt.Sprintf(metricEcho, 10): 10 * pageMessages, fmt.Sprintf(metricHeld, 32): 2} {
		if x, ok := r.find(metric, bySandpitHTTP); !ok || x.N < least || x.P50 <= 0 {
			t.Errorf("%q of a server: %+v", metric, x)
		}
	}
	if x, ok := r.find(fmt.Sprintf(metricSilent, 10), bySandpitHTTP); !ok || x.P50 != 0 {
		t.Errorf("WebSockets that fail: %+v", x)
	}
	if _, ok := r.find(metricFirst, bySandpitCLI); !ok {
		t.Error("no figure for the command line")
	}
	if _, ok := r.find(metricExec, byHost); !ok {
		t.Error("no figure for the machine itself")
	}
	if r.Machine.CPU == "" || r.Machine.Cores < 1 || r.Machine.Kernel == "" || r.Machine.RootFS == "" {
		t.Errorf("machine: %+v", r.Machine)
	}
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Benchmarks\n", "go run ./bench -n 2 -quick -no-docker -md " + page, "## Figures", "-no-docker"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the page has no %q", want)
		}
	}
}

// readReport reads what writeJSON wrote.
func readReport(t *testing.T, lines []byte) *report {
	t.Helper()
	var r report
	for line := range bytes.Lines(lines) {
		var x struct {
			Machine *machine
			Result  *result
			Target  *target
			Skip    *skip
			Ratio   *comparison
		}
		decoder := json.NewDecoder(bytes.NewReader(line))
		decoder.DisallowUnknownFields()
		if err := decoder.Decode(&x); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		switch {
		case x.Machine != nil:
			r.Machine = *x.Machine
		case x.Result != nil:
			r.add(*x.Result)
		case x.Target != nil:
			r.Targets = append(r.Targets, *x.Target)
		case x.Skip != nil:
			r.Skips = append(r.Skips, *x.Skip)
		case x.Ratio == nil:
			t.Errorf("an empty line: %s", line)
		}
	}
	return &r
}

func TestParse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		args []string
		want string // of the error
	}{
		"all":           {[]string{"-engine", "a", "-rootfs", "b.tar", "-n", "5", "-only", "exec,memory", "-quick", "-json", "a", "-md", "b", "-no-docker", "-check"}, ""},
		"unknown name":  {[]string{"-only", "exec,fly"}, "-only fly: there are first, destroy, exec, "},
		"negative":      {[]string{"-n", "-1"}, "-n -1: must not be negative"},
		"argument":      {[]string{"exec"}, `unexpected argument "exec"; see -help`},
		"unknown flag":  {[]string{"-fly"}, "flag provided but not defined"},
		"asks for help": {[]string{"-help"}, flag.ErrHelp.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var stderr bytes.Buffer
			o, err := parse(tc.args, &stderr)
			if tc.want == "" {
				if err != nil || o.n != 5 || !o.wants("exec") || o.wants("tree") || o.samples(100) != 5 ||
					!filepath.IsAbs(o.engine) || !filepath.IsAbs(o.rootfs) {
					t.Errorf("%+v, %v", o, err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("%v, want %q", err, tc.want)
			}
			if errors.Is(err, flag.ErrHelp) && !strings.Contains(stderr.String(), "go run ./bench -quick") {
				t.Errorf("help without examples:\n%s", &stderr)
			}
		})
	}
}
