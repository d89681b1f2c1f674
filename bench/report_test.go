package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// example is a report with a figure for each target.
func example() *report {
	var r report
	of := func(m, who string, median float64) result {
		return result{Metric: m, Contestant: who, Unit: unitMS, stats: stats{N: 10, Min: median / 2, P50: median, P90: median, Max: 2 * median}}
	}
	r.add(
		of(metricFirst, bySandpit, 100), of(metricFirst, byDocker, 400), of(metricFirst, byHost, 1), of(metricFirst, bySandpitCLI, 120),
		of(metricFirst, bySandpitPool, 16),
		of(metricExec, bySandpit, 8), of(metricExec, byDocker, 50), of(metricExec, bySandpitHTTP, 5), of(metricUpload, bySandpitHTTP, 200),
		single(atBoxes(metricPSS, targetBoxes), bySandpit, unitMB, 15.5),
		of(metricExec, bySandpitDocker, 10), of(metricCreate, bySandpitDocker, 300), of(metricCreate, byDocker, 240),
		of(metricEarly, bySandpit, 50), of(metricLateCreate, bySandpit, 70))
	r.skip("compile, docker", "no cc | no luck")
	r.Targets = slices.Concat(judge(&r), judgeSDKs(&r))
	return &r
}

func TestJudge(t *testing.T) {
	t.Parallel()
	r := example()
	want := []target{
		{What: "new box to first output, of docker run", Most: 0.5, Got: 0.25, Known: true, Pass: true},
		{What: "box of a warm pool to first output, of docker run", Most: 0.05, Got: 0.04, Known: true, Pass: true},
		{What: "exec of true, of docker exec", Most: 0.15, Got: 0.16, Known: true},
		{What: "exec of true in a container of ours, of docker exec", Most: 0.3, Got: 0.2, Known: true, Pass: true},
		{What: "create of a container of ours, of docker run -d", Most: 1.2, Got: 1.25, Known: true},
		{What: "MB of PSS for an idle box, at 100 boxes", Most: 16, Got: 15.5, Known: true, Pass: true},
		{What: "create with many boxes there, of the first creates", Most: 1.3, Got: 1.4, Known: true},
		{What: "ms for exec of true over HTTP", Most: 6, Got: 5, Known: true, Pass: true},
		{What: "ms from create to first output over HTTP, by a pool", Most: 15},
		{What: "ms for each MB of a 100 MB file in over HTTP (150 MB/s)", Most: 1000.0 / 150, Got: 5, Known: true, Pass: true},
		{What: "ms for each MB of a 100 MB file out over HTTP (150 MB/s)", Most: 1000.0 / 150},
		{What: "ms from a line to its answer in 100 shells, p99", Most: 30},
		{What: "ms to connect from an online box and have a byte echoed", Most: 3},
		{What: "ms for each MB into an online box (400 MB/s)", Most: 1000.0 / 400},
		{What: "ms for each MB out of an online box (400 MB/s)", Most: 1000.0 / 400},
		{What: "ms that a preview adds to a request", Most: 3},
		{What: "ms of an agent's loop for a step, beside model and tools", Most: 2},
		{What: "ms that MCP adds to a call of a tool, by a program", Most: 2},
		{What: "ms that MCP adds to a call of a tool, over HTTP", Most: 2},
		{What: "ms that shell_exec of true takes more than an exec of it", Most: 2},
		{What: "ms that shell_exec of true by MCP takes more than an exec of it", Most: 2},
		{What: "failures of 1000 WebSockets at a time"},
		{What: "ms from create to the answer of a template's web server", Most: 300},
		{What: "ms to resume in place", Most: 10},
		{What: "ms to resume an idle box from disk", Most: 150},
		{What: "ms for a snapshot with 100 MB in memory", Most: 250},
		{What: "ms for a fork of it to its first command", Most: 300},
		{What: "ms for 10 forks of it to their first commands", Most: 1500},
		{What: "ms to stop and start with 100 MB of files", Most: 1000},
		{What: "MB of memory of a box that is paused on disk"},
		{What: "MB of disk of an idle box that is paused on disk", Most: 10},
		{What: "ms for E2B's SDK to create of a warm pool and run true", Most: 25},
		{What: "ms for E2B's SDK to create and run true", Most: 150},
		{What: "ms for E2B's SDK to run true", Most: 8},
		{What: "ms for E2B's SDK for each MB of a file in (100 MB/s)", Most: 10},
		{What: "ms for E2B's SDK for each MB of a file out (100 MB/s)", Most: 10},
		{What: "ms for E2B's SDK to run code in a new sandbox", Most: 400},
		{What: "ms for Daytona's SDK to create of a warm pool and run true", Most: 30},
		{What: "ms for Daytona's SDK to run true", Most: 10},
		{What: "ms for Daytona's SDK for each MB of a file in (100 MB/s)", Most: 10},
		{What: "ms for Daytona's SDK for each MB of a file out (100 MB/s)", Most: 10},
		{What: "ms for Daytona's SDK to start a stopped sandbox", Most: 400},
	}
	if diff := cmp.Diff(want, r.Targets); diff != "" {
		t.Error(diff)
	}
	if !missed(r.Targets) || missed(r.Targets[:1]) {
		t.Error("missed is wrong about what was measured")
	}
	none := judge(&report{})
	for _, x := range none {
		if x.Known || x.Pass {
			t.Errorf("judged without figures: %+v", x)
		}
	}
	if missed(none) {
		t.Error("what was not measured counts as missed")
	}
}

func TestComparisons(t *testing.T) {
	t.Parallel()
	want := []comparison{
		{Metric: metricFirst, Of: bySandpit, To: byDocker, Ratio: 0.25},
		{Metric: metricFirst, Of: bySandpit, To: byHost, Ratio: 100},
		{Metric: metricFirst, Of: bySandpitCLI, To: byDocker, Ratio: 0.3},
		{Metric: metricFirst, Of: bySandpitPool, To: byDocker, Ratio: 0.04},
	}
	if diff := cmp.Diff(want, example().comparisons(metricFirst)); diff != "" {
		t.Error(diff)
	}
}

func TestWriteText(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := writeText(&out, example()); err != nil {
		t.Fatal(err)
	}
	text := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{
		"exec of true, of docker exec 0.15 0.16 missed",
		"new box to first output ms 0.25 - 100 0.30",
		"new box to first output docker ms 10 200 400 400 - 800",
		"memory per idle box, sum of PSS (100 boxes) sandpit MB 1 - 15.5 - - -",
		"compile, docker no cc | no luck",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

func TestWriteMarkdown(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := writeMarkdown(&out, example(), options{markdown: "docs/benchmarks.md"}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"\n    go run ./bench -md docs/benchmarks.md\n",
		"\n| target | at most | measured |  |\n| --- | --- | --- | --- |\n",
		`| compile, docker | no cc \| no luck |`,
		remarks,
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, &out)
		}
	}
}

func TestWriteJSON(t *testing.T) {
	t.Parallel()
	r := example()
	r.Machine.CPU = "one"
	var out bytes.Buffer
	if err := writeJSON(&out, r); err != nil {
		t.Fatal(err)
	}
	got := readReport(t, out.Bytes())
	if diff := cmp.Diff(r, got, cmp.AllowUnexported(result{})); diff != "" {
		t.Error(diff)
	}
	if n := strings.Count(out.String(), `{"ratio":`); n != 7 {
		t.Errorf("%d ratios, want 7", n)
	}
}

// TestSeries has two contestants take turns, and one of them fail.
func TestSeries(t *testing.T) {
	t.Parallel()
	k := &kit{stderr: io.Discard}
	s := series{kit: k, n: 3, metrics: []metric{{"up", unitMS}, {"down", unitMS}}}
	var turns strings.Builder
	count := 0.0
	s.add("a", func() ([]float64, error) {
		turns.WriteString("a")
		count++
		return []float64{count, -count}, nil
	})
	broken := errors.New("broken")
	s.add("b", func() ([]float64, error) {
		turns.WriteString("b")
		if count > 2 {
			return nil, broken
		}
		return []float64{1, 1}, nil
	})
	if err := s.run(t.Context()); !errors.Is(err, broken) {
		t.Errorf("error %v, want the failure", err)
	}
	if turns.String() != "abababa" {
		t.Errorf("turns %s", &turns)
	}
	up, _ := k.report.find("up", "a")
	down, _ := k.report.find("down", "a")
	if up.N != 3 || up.Min != 2 || up.Max != 4 || down.Min != -4 {
		t.Errorf("the warm-up counts, or figures are mixed up: %+v, %+v", up, down)
	}
	if _, ok := k.report.find("up", "b"); ok || len(k.report.Skips) != 1 || !strings.Contains(k.report.Skips[0].Why, "broken") {
		t.Errorf("the failure is not told: %+v", k.report)
	}

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.run(ended); !errors.Is(err, context.Canceled) {
		t.Errorf("interrupted: %v", err)
	}
}

func TestNumber(t *testing.T) {
	t.Parallel()
	for v, want := range map[float64]string{0: "0.00", 0.123: "0.12", 9.876: "9.88", 12.34: "12.3", 123.4: "123", -3: "-3.00", -45.67: "-45.7"} {
		if got := number(v); got != want {
			t.Errorf("number(%v) = %s, want %s", v, got, want)
		}
	}
}
