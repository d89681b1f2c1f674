package tool

import (
	"context"
	"crypto/rand"
	"path"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/core/pattern"
	"github.com/sandpit-dev/sandpit/internal/reach/workspace"
)

const maxNodeFiles = 100

type nodeInput struct {
	Code    string            `json:"code" jsonschema:"the program"`
	Timeout float64           `json:"timeout,omitempty" jsonschema:"seconds after which it is stopped" default:"30" range:"0,3600"`
	Stdin   string            `json:"stdin,omitempty" jsonschema:"its standard input"`
	Files   map[string]string `json:"files,omitempty" jsonschema:"files by name in the program's directory, which is then its working directory; default: no files, and the session's working directory"`
}

type nodeData struct {
	Stdout   string  `json:"stdout"`
	Stderr   string  `json:"stderr"`
	ExitCode int     `json:"exit_code"`
	TimedOut bool    `json:"timed_out,omitempty"`
	Duration float64 `json:"duration_seconds"`
}

// moduleSyntax matches statements that are valid only in modules.
var moduleSyntax = pattern.New(`(?m)^\s*(import\s+[\w{*"']|export\s+[\w{*])`)

func nodeExecute(ctx context.Context, s *Session, in nodeInput) (result Result, err error) {
	program := "program.cjs"
	if moduleSyntax().MatchString(in.Code) {
		program = "program.mjs"
	}
	if err := in.checkFiles(program); err != nil {
		return Result{}, err
	}
	dir := s.absPath(path.Join(outputDir, "node-"+rand.Text()[:10]))
	defer func() {
		cleaning, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
		defer cancel()
		if cleanErr := s.files.Remove(cleaning, dir); err == nil {
			err = cleanErr
		}
	}()
	where := s.o.Dir
	for name, content := range in.Files {
		where = dir
		if err := s.files.WriteFile(ctx, path.Join(dir, name), strings.NewReader(content)); err != nil {
			return Result{}, err
		}
	}
	file := path.Join(dir, program)
	if err := s.files.WriteFile(ctx, file, strings.NewReader(in.Code)); err != nil {
		return Result{}, err
	}
	cmd := sandpit.Command{Args: []string{"node", file}, Dir: where, Stdin: strings.NewReader(in.Stdin), Timeout: max(toDuration(in.Timeout), 1)}
	r, err := s.runProgram(ctx, cmd)
	if sandpit.CodeOf(err) == sandpit.NotFound {
		return Result{}, sandpit.WithHint(sandpit.Errorf(sandpit.Unsupported, "this image has no Node.js: %w", err), "use an image with Node.js, such as node:22-slim")
	}
	return s.nodeResult(r, err)
}

// checkFiles returns an Invalid error for files outside of the program's directory.
func (in nodeInput) checkFiles(program string) error {
	if len(in.Files) > maxNodeFiles {
		return sandpit.Errorf(sandpit.Invalid, "%d files: want at most %d", len(in.Files), maxNodeFiles)
	}
	for name := range in.Files {
		if name == "" || path.IsAbs(name) || path.Clean(name) != name || name == "." || name == ".." || strings.HasPrefix(name, "../") || strings.IndexByte(name, 0) >= 0 {
			return sandpit.Errorf(sandpit.Invalid, "file %.100q: want a path below the program's directory", name)
		}
		if name == program {
			return sandpit.Errorf(sandpit.Invalid, "file %q: the program itself has this name", name)
		}
	}
	return nil
}

func (s *Session) nodeResult(r workspace.Result, err error) (Result, error) {
	output := r.Stdout
	if r.Stderr != "" && output != "" && !strings.HasSuffix(output, "\n") {
		output += "\n"
	}
	output += r.Stderr
	if err != nil && !r.TimedOut {
		return Result{Text: output}, err
	}
	data := nodeData{s.secretSet().truncateText(r.Stdout), s.secretSet().truncateText(r.Stderr), r.ExitCode, r.TimedOut, r.Duration.Seconds()}
	text := commandText(r.ExitCode, output)
	if r.TimedOut {
		text = "[FAILED (timeout; the program was stopped)]\n" + output
	}
	return Result{Text: text, Data: data, Failed: r.ExitCode != 0 || r.TimedOut}, nil
}
