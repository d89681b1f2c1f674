package toolbox

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/memory"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

// runRequest is a program in source code.
type runRequest struct {
	Code     string            `json:"code"`
	Language string            `json:"language"`
	Argv     []string          `json:"argv"`
	Envs     map[string]string `json:"envs"`
	Timeout  *float64          `json:"timeout"`
}

// runResponse is the result of a program.
type runResponse struct {
	executeResponse

	Artifacts artifacts `json:"artifacts"`
}

// artifacts are what a program has shown.
type artifacts struct {
	Charts []map[string]any `json:"charts"`
}

// The scripts that run a program in their input with arguments, for programs that are too long for
// an argument. Both runtimes read all of the program before they run it.
const (
	// By itself Python would read a program in its input byte by byte.
	pythonInputScript = `set -- -c 'exec(compile(open(0, encoding="utf-8", closefd=False).read(), "<string>", "exec"))' "$@"
command -v python3 >/dev/null && exec python3 "$@"; exec python "$@"`
	nodeInputScript = `exec node - "$@"`
)

// The scripts that run a program ($1) with arguments.
const (
	pythonScript = `command -v python3 >/dev/null && exec python3 -c "$@"; exec python -c "$@"`
	// As for a program in a file, the arguments begin at the third element of process.argv.
	nodeScript = `code=$1; shift; exec node -e "$code" -- code.js "$@"`
	// Of the runtimes for TypeScript, Node.js alone cannot run its text directly.
	typeScript = `code=$1; shift
if command -v tsx >/dev/null; then exec tsx -e "$code" -- code.ts "$@"; fi
if command -v bun >/dev/null; then exec bun -e "$code" -- "$@"; fi
if command -v deno >/dev/null; then exec deno eval --ext=ts "$code" -- "$@"; fi
exec node -e '` + typeRunner + `' -- "$code" "$@"`
	// typeRunner removes the types from a program and runs it.
	typeRunner = `const [code] = process.argv.splice(1, 1);
process.removeAllListeners("warning");
let typescript, text;
for (const place of ["typescript", "/usr/share/nodejs/typescript", "/usr/local/lib/node_modules/typescript", "/usr/lib/node_modules/typescript"]) {
	try { typescript ??= require(place); } catch {}
}
const { stripTypeScriptTypes } = require("node:module");
if (typescript) {
	text = typescript.transpileModule(code, { compilerOptions: { module: "CommonJS", target: "ES2022" } }).outputText;
} else if (stripTypeScriptTypes) {
	text = stripTypeScriptTypes(code, { mode: "transform" });
} else {
	console.error("TypeScript needs tsx, bun, deno, the package typescript, or Node.js 22.13");
	process.exit(127);
}
const { status } = require("node:child_process").spawnSync(process.execPath, ["-e", text, "--", "code.ts", ...process.argv.slice(1)], { stdio: "inherit" });
process.exit(status ?? 1);`
)

// runCode runs a program, and kills it when the client disconnects. Python programs that draw
// run in the code interpreter, which reports charts; all others in the plain runtime.
func runCode(ctx context.Context, c *call) error {
	var in runRequest
	if err := c.readBody(&in); err != nil {
		return err
	}
	cmd, err := in.newCommand()
	if err != nil {
		return err
	}
	if cmd.Timeout, err = c.server.parseTimeout(in.Timeout); err != nil {
		return err
	}
	if in.Language == interpreter.Python && drawsPattern().MatchString(in.Code) {
		done, err := runDrawing(ctx, c, in, cmd.Timeout)
		if code := sandpit.CodeOf(err); code != sandpit.Unsupported && code != sandpit.NotFound {
			return c.writeResult(done, err)
		}
	}
	done, err := runMerged(ctx, c, cmd)
	return c.writeResult(runResponse{done, artifacts{[]map[string]any{}}}, err)
}

// newCommand returns the command that runs a program in its plain runtime. A program that is too
// long for an argument is sent as the input of the runtime.
func (r runRequest) newCommand() (sandpit.Command, error) {
	languages := map[string]struct{ script, inputScript string }{
		interpreter.Python:     {pythonScript, pythonInputScript},
		interpreter.JavaScript: {nodeScript, nodeInputScript},
		interpreter.TypeScript: {typeScript, ""},
	}
	language, known := languages[r.Language]
	isLong, limit := len(r.Code) > maxArgument, maxCommand
	if language.inputScript == "" {
		limit = maxArgument
	}
	switch {
	case strings.TrimSpace(r.Code) == "":
		return sandpit.Command{}, sandpit.Errorf(sandpit.Invalid, "code cannot be empty")
	case !known:
		return sandpit.Command{}, sandpit.Errorf(sandpit.Invalid, "unsupported language %.40q: want python, javascript or typescript", r.Language)
	case len(r.Code) > limit:
		return sandpit.Command{}, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "the code has %d bytes, at most %d are allowed", len(r.Code), limit),
			"upload it as a file and execute that")
	case isLong:
		args := append(sandpit.ShellArgs(mergeOutputs+language.inputScript), "sh")
		return sandpit.Command{Args: append(args, r.Argv...), Env: r.Envs, Stdin: strings.NewReader(r.Code)}, nil
	}
	args := append(sandpit.ShellArgs(mergeOutputs+language.script), "sh", r.Code)
	return sandpit.Command{Args: append(args, r.Argv...), Env: r.Envs}, nil
}

func (c *call) writeResult(done runResponse, err error) error {
	if err != nil {
		return err
	}
	return c.writeJSON(http.StatusOK, done)
}

// drawsPattern matches programs that may draw charts.
var drawsPattern = pattern.New(`\b(matplotlib|pylab|seaborn|plotnine)\b`)

// drawingPrelude sets the arguments of a program. IPython warns of programs that exit. Programs
// for machines without a screen often choose the backend Agg, with which show does nothing; they
// keep the backend that shows figures to the client.
const drawingPrelude = `import json as _j, sys as _s, warnings as _w
_s.argv = _j.loads(%q)
_w.filterwarnings("ignore", message="To exit: use")
del _j, _s, _w
try:
    import matplotlib as _m
    def _use(backend, *args, _use=_m.use, **options):
        if str(backend).lower() != "agg":
            _use(backend, *args, **options)
    _m.use = _use
    del _m, _use
except ImportError:
    pass`

// runDrawing runs a Python program in an interpreter of its own.
//
// Unsupported, NotFound: the sandbox has no interpreter; nothing was run.
func runDrawing(ctx context.Context, c *call, in runRequest, timeout time.Duration) (runResponse, error) {
	p, err := c.server.programs.findPrograms(c)
	if err != nil {
		return runResponse{}, err
	}
	limited, cancel := ctx, context.CancelFunc(func() {})
	if timeout > 0 {
		limited, cancel = context.WithTimeoutCause(ctx, timeout, errCodeTimedOut)
	}
	defer cancel()
	argv, err := json.Marshal(append([]string{"-c"}, in.Argv...))
	if err != nil {
		return runResponse{}, err
	}
	out := &drawing{both: workspace.NewWindowOf(ctx, maxOutput, outputCost), account: memory.AccountOf(ctx), charts: []map[string]any{}}
	cell := interpreter.Cell{Context: "run-" + newID(), Language: interpreter.Python, Env: in.Envs}
	defer p.removeContext(ctx, cell.Context)
	for _, code := range []string{fmt.Sprintf(drawingPrelude, argv), in.Code} {
		cell.Code = code
		if err = p.remote.Run(limited, cell, out.handleEvent); err != nil {
			break
		}
	}
	if errors.Is(context.Cause(limited), errCodeTimedOut) {
		err = newTimeoutError(timeout)
	}
	return out.toResponse(), err
}

// removeContext ends an interpreter after a program.
func (p *programs) removeContext(ctx context.Context, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), removeTimeout)
	defer cancel()
	_ = p.remote.Remove(ctx, name) // it is not used again, and ends with the sandbox
}

// maxCharts bounds the charts of a program, and maxChartBytes their sizes together. chartCost is the
// memory that each of their bytes takes: as text, and as values.
const (
	maxCharts     = 100
	maxChartBytes = 32 << 20
	chartCost     = 2
)

// drawing collects the output and the charts of a program.
type drawing struct {
	both     *workspace.Window
	account  *memory.Account
	charts   []map[string]any
	size     int // of the charts, in bytes
	exitCode int
}

// handleEvent handles one event.
func (d *drawing) handleEvent(e interpreter.Event) error {
	switch e := e.(type) {
	case interpreter.Output:
		_, _ = d.both.Write([]byte(e.Text)) // never fails
	case interpreter.Result:
		d.addChart(e)
	case interpreter.Failure:
		d.exitCode = 1
		if e.Name == "SystemExit" {
			if d.exitCode = exitCodeOf(e.Value); d.exitCode == 1 && e.Value != "1" { // a message
				_, _ = d.both.Write([]byte(e.Value + "\n")) // as above
			}
			return nil
		}
		text := cmp.Or(e.Traceback, e.Name+": "+e.Value)
		_, _ = d.both.Write([]byte(strings.TrimSuffix(text, "\n") + "\n")) // as above
	}
	return nil
}

// exitCodeOf returns the exit code of a program that has raised SystemExit.
func exitCodeOf(value string) int {
	switch value {
	case "", "None":
		return 0
	}
	if n, err := strconv.Atoi(value); err == nil {
		return n & 0xff
	}
	return 1
}

// addChart adds what a figure shows, with its picture, if there is memory for it.
func (d *drawing) addChart(e interpreter.Result) {
	size := len(e.Chart) + len(e.PNG)
	if len(e.Chart) == 0 || len(d.charts) >= maxCharts || d.size+size > maxChartBytes {
		return
	}
	if d.account.Reserve(int64(size)*chartCost+new(memory.ValueCounter).Count(e.Chart)*memory.ValueCost) != nil {
		return
	}
	var chart map[string]any
	if json.Unmarshal(e.Chart, &chart) != nil || chart == nil {
		return // a sandbox may send anything
	}
	if chart["type"] == "superchart" {
		chart["type"] = "composite_chart"
	}
	var picture string
	if json.Unmarshal(e.PNG, &picture) == nil && picture != "" {
		chart["png"] = strings.ReplaceAll(picture, "\n", "")
	}
	d.size += size
	d.charts = append(d.charts, chart)
}

func (d *drawing) toResponse() runResponse {
	return runResponse{executeResponse{d.exitCode, toText(d.both.String())}, artifacts{d.charts}}
}
