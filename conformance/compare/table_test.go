package compare_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sandpit-dev/sandpit"
)

// probe is one thing that is done on both.
type probe struct {
	name string
	// do returns what came of it, without anything that changes from one time or
	// machine to the next.
	do func(t *testing.T, p *place) string
	// want is what comes of it on both.
	want string
	// gvisor and docker are what comes of it where they differ, and why is the reason.
	gvisor, docker, why string
}

// on is what comes of it there.
func (b probe) on(k kind) string {
	switch {
	case b.why == "":
		return b.want
	case k == onGVisor:
		return b.gvisor
	default:
		return b.docker
	}
}

// chapter is a part of the table.
type chapter struct {
	title  string
	probes []probe
}

func chapters() []chapter {
	return []chapter{
		{"Commands", commandProbes()},
		{"Users and directories", identityProbes()},
		{"The kernel", kernelProbes()},
		{"Rights", rightProbes()},
		{"Files from inside", fileProbes()},
		{"Files from outside", outsideProbes()},
		{"Network and ports", networkProbes()},
		{"Limits", limitProbes()},
		{"Mounts", mountProbes()},
	}
}

// TestSame does everything in the table on both.
func TestSame(t *testing.T) {
	t.Parallel()
	for _, k := range []kind{onGVisor, onDocker} {
		t.Run(string(k), func(t *testing.T) {
			t.Parallel()
			p := newPlace(t, k)
			for _, c := range chapters() {
				for _, b := range c.probes {
					t.Run(b.name, func(t *testing.T) {
						if diff := cmp.Diff(b.on(k), b.do(t, p)); diff != "" {
							t.Errorf("on %s (-in the table +seen):\n%s", k, diff)
						}
					})
				}
			}
		})
	}
}

// TestTable looks at the table itself.
func TestTable(t *testing.T) {
	t.Parallel()
	seen := make(map[string]bool)
	for _, c := range chapters() {
		for _, b := range c.probes {
			if seen[b.name] {
				t.Errorf("%s is there twice", b.name)
			}
			seen[b.name] = true
			switch {
			case b.why == "" && (b.want == "" || b.gvisor+b.docker != ""):
				t.Errorf("%s: want one result of both", b.name)
			case b.why != "" && (b.want != "" || b.gvisor == b.docker || b.gvisor == "" || b.docker == ""):
				t.Errorf("%s: want two results that differ", b.name)
			}
		}
	}
}

const page = "../../docs/differences.md"

// TestDocument holds docs/differences.md to the table.
func TestDocument(t *testing.T) {
	t.Parallel()
	want := document()
	if *update {
		if err := os.WriteFile(page, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(page); err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s is not current (%v); run: go test ./conformance/compare -run TestDocument -update", page, err)
	}
}

const preface = `# Where gVisor and Docker differ

<!-- Written by: go test ./conformance/compare -run TestDocument -update -->

This page lists what differs between the two kinds of sandboxes, which have the same contract.

[conformance/compare](../conformance/compare) does %d things in the same image with the embedded engine (gVisor) and
with a Docker engine that uses runc, each with its defaults, and compares the results. %d are alike; these are the
others. A test fails when one is missing here, or no longer differs.
`

func document() []byte {
	var out, rows bytes.Buffer
	all, alike := 0, 0
	for _, c := range chapters() {
		begun := false
		for _, b := range c.probes {
			all++
			if b.why == "" {
				alike++
				continue
			}
			if !begun {
				fmt.Fprintf(&rows, "\n## %s\n\n| what | gVisor | Docker | why |\n| --- | --- | --- | --- |\n", c.title)
				begun = true
			}
			fmt.Fprintf(&rows, "| %s | %s | %s | %s |\n", b.name, cell(b.gvisor), cell(b.docker), b.why)
		}
	}
	fmt.Fprintf(&out, preface, all, alike)
	out.Write(rows.Bytes())
	return out.Bytes()
}

// cell is a result as a cell of a table.
func cell(text string) string {
	text = strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ")
	return "`" + strings.ReplaceAll(text, "|", `\|`) + "`"
}

// outcome is what a command came to.
func outcome(stdout, stderr string, status sandpit.ExitStatus) string {
	text := stdout
	if stderr != "" {
		text += "stderr: " + stderr
	}
	if status != (sandpit.ExitStatus{}) {
		text += fmt.Sprintf("[%s, code %d]", status, status.Code)
	}
	if text == "" {
		text = "[nothing]"
	}
	return text
}

// failure is an error as the table has it.
func failure(err error) string {
	if err == nil {
		return "done"
	}
	return "refused: " + string(sandpit.CodeOf(err))
}

// run runs a command to its end.
func run(t *testing.T, box sandpit.Instance, cmd sandpit.Command) string {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	p, err := box.Guest().Start(within(t), cmd)
	if err != nil {
		return failure(err)
	}
	status, err := p.Wait(within(t))
	if err != nil {
		return failure(err)
	}
	return outcome(stdout.String(), stderr.String(), status)
}

// sh runs a script in the shared sandbox.
func sh(script string) func(*testing.T, *place) string {
	return command(sandpit.Command{Args: []string{"sh", "-c", script}})
}

// command runs a command in the shared sandbox.
func command(cmd sandpit.Command) func(*testing.T, *place) string {
	return func(t *testing.T, p *place) string {
		t.Helper()
		return run(t, p.box, cmd)
	}
}

// shIn runs a script in a sandbox of its own.
func shIn(spec sandpit.Spec, script string) func(*testing.T, *place) string {
	return func(t *testing.T, p *place) string {
		t.Helper()
		return run(t, p.create(t, spec), sandpit.Command{Args: []string{"sh", "-c", script}})
	}
}

var errUnexpected = errors.New("something else came back")
