package interpreter

import (
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
)

// Languages.
const (
	Python     = "python"
	JavaScript = "javascript"
	TypeScript = "typescript"
	Bash       = "bash"
)

//go:embed kernels/python.py
var pythonKernel string

//go:embed kernels/ipython.py
var pythonShell string

//go:embed kernels/plain.py
var plainShell string

//go:embed kernels/charts.py
var pythonCharts string

//go:embed kernels/node.js
var nodeKernel string

//go:embed kernels/bash.sh
var bashKernel string

// language says how a kernel is started and how requests are encoded for it.
type language struct {
	command []string // reads the kernel's source from descriptor 5
	source  func() string
	encode  func(job) ([]byte, error)
	// byLine says that an empty line interrupts the kernel. Signals are sent to it and its children in any case.
	byLine bool
}

// job is one run, as encoded for kernels.
type job struct {
	ID       uint64            `json:"id"`
	Code     string            `json:"code"`
	Language string            `json:"language"`
	Global   map[string]string `json:"global,omitempty"` // for all runs from now on
	Env      map[string]string `json:"env,omitempty"`    // for this run
	Reseed   bool              `json:"reseed,omitempty"` // the sandbox is a copy of the one in which the kernel started
}

// The kernels of the languages. node runs JavaScript and TypeScript.
var (
	python = language{
		command: []string{"python3", "-c", `exec(compile(open(5).read(), "<kernel>", "exec"))`},
		source:  pythonSource, encode: encodeLine,
	}
	node = language{
		command: []string{"node", "-e", `new Function("require", require("fs").readFileSync(5, "utf8") + "\n//# sourceURL=<kernel>")(require)`},
		source:  func() string { return nodeKernel }, encode: encodeLine, byLine: true,
	}
	bash = language{
		command: []string{"bash", "--noprofile", "--norc", "-c", `eval "$(</dev/fd/5)"`},
		source:  func() string { return bashKernel }, encode: encodeTexts,
	}
)

// pythonSource returns the source of Python's kernel. It is not a variable: every process of a sandbox is this program
// or the guest, and would hold it.
func pythonSource() string {
	return pythonCharts + pythonKernel + "\nIPYTHON = " + strconv.QuoteToASCII(pythonShell) + "\nPLAIN = " + strconv.QuoteToASCII(plainShell) + "\nserve()\n"
}

// findLanguage returns the canonical name and the language for a client's name. Unsupported: no kernel runs it.
func findLanguage(name string) (string, language, error) {
	switch name = strings.ToLower(strings.TrimSpace(name)); name {
	case "", Python, "python3", "py":
		return Python, python, nil
	case JavaScript, "js":
		return JavaScript, node, nil
	case TypeScript, "ts", "tslab":
		return TypeScript, node, nil
	case Bash, "sh":
		return Bash, bash, nil
	}
	return "", language{}, sandpit.Errorf(sandpit.Unsupported, "unknown language %.40q: want python, javascript, typescript or bash", name)
}

// findProgram finds the kernel's program in the PATH that the kernel will have.
func (l language) findProgram(env map[string]string) (string, error) {
	dirs := []string{""} // our own PATH
	if search, given := env["PATH"]; given {
		dirs = filepath.SplitList(search)
	}
	for _, dir := range dirs {
		path, err := exec.LookPath(filepath.Join(dir, l.command[0]))
		if err == nil && filepath.IsAbs(path) { // not one in the current directory
			return path, nil
		}
	}
	return "", sandpit.Errorf(sandpit.Unsupported, "this sandbox's image has no %s", l.command[0])
}

// withMark returns the kernel's source with a new mark.
func (l language) withMark() (source, mark string) {
	mark = rand.Text()
	return strings.ReplaceAll(l.source(), "@MARK@", mark), mark
}

func encodeLine(j job) ([]byte, error) {
	line, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	return append(line, '\n'), nil
}

var shellName = pattern.New(`^[A-Za-z_][A-Za-z0-9_]*$`)

// encodeTexts encodes a job in a form that bash can read.
func encodeTexts(j job) ([]byte, error) {
	if strings.Contains(j.Code, "\x00") {
		return nil, sandpit.Errorf(sandpit.Invalid, "the code contains a NUL byte")
	}
	var env strings.Builder
	for _, name := range sortedNames(j.Global) {
		if shellName().MatchString(name) { // bash cannot export other names
			fmt.Fprintf(&env, "export %s=%s; ", name, quoteShell(j.Global[name]))
		}
	}
	env.WriteString("__enter")
	for _, name := range sortedNames(j.Env) {
		if !shellName().MatchString(name) {
			return nil, sandpit.Errorf(sandpit.Invalid, "invalid environment variable name for bash: %.40q", name)
		}
		fmt.Fprintf(&env, " %s %s", name, quoteShell(j.Env[name]))
	}
	return fmt.Appendf(nil, "%d\x00%s\x00%s\x00", j.ID, env.String(), j.Code), nil
}

func quoteShell(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }

func sortedNames(env map[string]string) []string {
	names := make([]string, 0, len(env))
	for name := range env {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
