package tool

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
)

// codeTimeout bounds the start of an interpreter and the end of interrupted code, in addition to the
// timeout of the code.
const codeTimeout = 3 * time.Minute

func pythonTools() []Tool {
	run := Hints{Destructive: true, OpenWorld: true}
	return []Tool{
		{
			Name: "python_exec", Title: "Run Python", Category: Python, Hints: run, Timeout: codeTimeout, Aliases: []string{"python_execute"},
			Description: "Run Python code. Variables, functions and imports persist between calls. The result includes the value of the last expression " +
				"and matplotlib figures. Code that takes too long is interrupted and keeps its variables.",
			function: newFunction(pythonExec),
		}, {
			Name: "jupyter_execute", Title: "Run a notebook cell", Category: Python, Hints: run, Timeout: codeTimeout,
			Description: "Run code like a notebook cell. Each session_id has its own variables; main shares those of python_exec. " +
				"Other sessions end after 30 minutes without a call.",
			function: newFunction(jupyterExecute),
		}, {
			Name: "pip_install", Title: "Install Python packages", Category: Python, Hints: Hints{Idempotent: true, OpenWorld: true}, Timeout: 10 * time.Minute,
			Description: "Install Python packages with pip. The sandbox's network policy must allow access to a package index. They can be imported immediately.",
			function:    newFunction(pipInstall), synonyms: map[string]string{"package": "packages", "requirements": "requirements_file"},
		},
	}
}

func codeTools() []Tool {
	run := Hints{Destructive: true, OpenWorld: true}
	return []Tool{
		{
			Name: "javascript_execute", Title: "Run JavaScript", Category: Code, Hints: run, Timeout: codeTimeout,
			Description: "Run JavaScript in Node.js. Variables persist between calls, await is supported, and the result includes the value of the last expression.",
			function:    newFunction(javascriptExecute),
		}, {
			Name: "nodejs_execute", Title: "Run a program in Node.js", Category: Code, Hints: run, Timeout: codeTimeout,
			Description: "Run a JavaScript program in a new Node.js process, with optional input and files, which are removed afterwards. Nothing persists between calls.",
			function:    newFunction(nodeExecute),
		}, {
			Name: "code_execute", Title: "Run code", Category: Code, Hints: run, Timeout: codeTimeout,
			Description: "Run code in a language. Variables persist between calls, except with nodejs.",
			function:    newFunction(codeExecute),
		},
	}
}

type pythonInput struct {
	Code    string  `json:"code" jsonschema:"the code"`
	Timeout float64 `json:"timeout,omitempty" jsonschema:"seconds after which it is interrupted" default:"30" range:"0,3600"`
	Reset   bool    `json:"reset,omitempty" jsonschema:"reset all variables first; also stops running code" default:"false"`
}

func pythonExec(ctx context.Context, s *Session, in pythonInput) (Result, error) {
	return s.kernels.runCell(ctx, cellRequest{language: interpreter.Python, session: mainKernel, code: in.Code, seconds: in.Timeout, reset: in.Reset})
}

type javascriptInput struct {
	Code    string  `json:"code" jsonschema:"the code"`
	Timeout float64 `json:"timeout,omitempty" jsonschema:"seconds after which it is interrupted" default:"30" range:"0,3600"`
	Reset   bool    `json:"reset,omitempty" jsonschema:"reset all variables first; also stops running code" default:"false"`
}

func javascriptExecute(ctx context.Context, s *Session, in javascriptInput) (Result, error) {
	return s.kernels.runCell(ctx, cellRequest{language: interpreter.JavaScript, session: mainKernel, code: in.Code, seconds: in.Timeout, reset: in.Reset})
}

type codeInput struct {
	Language string  `json:"language" jsonschema:"the language" enum:"python,javascript,typescript,bash,nodejs"`
	Code     string  `json:"code" jsonschema:"the code"`
	Timeout  float64 `json:"timeout,omitempty" jsonschema:"seconds after which it is interrupted" default:"30" range:"0,3600"`
}

func codeExecute(ctx context.Context, s *Session, in codeInput) (Result, error) {
	if in.Language == "nodejs" {
		return nodeExecute(ctx, s, nodeInput{Code: in.Code, Timeout: in.Timeout})
	}
	return s.kernels.runCell(ctx, cellRequest{language: in.Language, session: mainKernel, code: in.Code, seconds: in.Timeout})
}

type jupyterInput struct {
	Code    string  `json:"code" jsonschema:"the code of a cell"`
	Timeout float64 `json:"timeout,omitempty" jsonschema:"seconds after which it is interrupted" default:"30" range:"0,3600"`
	Kernel  string  `json:"kernel_name,omitempty" jsonschema:"the language; values such as python3.11 require that version" enum:"python3,python3.9,python3.10,python3.11,python3.12,python3.13,python3.14,javascript,typescript,bash" default:"python3"`
	Session string  `json:"session_id,omitempty" jsonschema:"name of the set of variables; a new name starts an empty one" default:"main"`
}

func jupyterExecute(ctx context.Context, s *Session, in jupyterInput) (Result, error) {
	if !sessionPattern().MatchString(in.Session) {
		return Result{}, sandpit.Errorf(sandpit.Invalid, "invalid session_id %.100q: want 1 to 64 letters and digits, and - _ . except at the beginning", in.Session)
	}
	version, isPython := strings.CutPrefix(in.Kernel, "python")
	language := in.Kernel
	if isPython {
		language = interpreter.Python
	}
	if isPython && version != "3" {
		if err := s.kernels.checkVersion(ctx, in.Session, version); err != nil {
			return Result{}, err
		}
	}
	return s.kernels.runCell(ctx, cellRequest{language: language, session: in.Session, code: in.Code, seconds: in.Timeout})
}

// mainKernel is the session_id of the interpreters that all code tools share.
const mainKernel = "main"

// cellRequest is code to run in an interpreter.
type cellRequest struct {
	language, session, code string
	seconds                 float64
	reset                   bool
}

func (r cellRequest) contextName() string { return r.language + "/" + r.session }

// runCell runs code and returns its result.
func (k *kernels) runCell(ctx context.Context, r cellRequest) (Result, error) {
	if err := k.endIdle(ctx, r.contextName()); err != nil {
		return Result{}, err
	}
	if r.reset {
		if err := k.remote.Restart(ctx, r.contextName()); err != nil {
			return Result{}, err
		}
		if strings.TrimSpace(r.code) == "" {
			return Result{Text: "All variables were reset"}, nil
		}
	}
	out := newCellOutput(ctx, k.session, r)
	limited, cancel := context.WithTimeout(ctx, toDuration(r.seconds))
	defer cancel()
	begun := time.Now()
	err := k.remote.Run(limited, interpreter.Cell{Context: r.contextName(), Language: r.language, Code: r.code}, out.handleEvent)
	out.data.Duration = time.Since(begun).Seconds()
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		out.data.TimedOut, err = true, nil
	}
	if sandpit.CodeOf(err) == sandpit.Unsupported {
		err = sandpit.WithHint(err, firstAllowed(ctx, "use an image with it, or install it with shell_exec", "use an image with it"))
	}
	result := out.toResult()
	if err != nil {
		return Result{Text: result.Text}, err
	}
	return result, nil
}

// checkVersion returns an Unsupported error if the image has another version of Python.
func (k *kernels) checkVersion(ctx context.Context, session, version string) error {
	r := cellRequest{language: interpreter.Python, session: session, seconds: 60, code: `"%d.%d" % __import__("sys").version_info[:2]`}
	result, err := k.runCell(ctx, r)
	if err != nil {
		return err
	}
	data, ok := result.Data.(cellData)
	if !ok || len(data.Results) != 1 || data.Results[0].Text != version {
		return sandpit.Errorf(sandpit.Unsupported, "this image has another version of Python than %s: %.100s", version, result.Text)
	}
	return nil
}

// kernelIdleTimeout is the time without a call after which interpreters end, except the main ones.
const kernelIdleTimeout = 30 * time.Minute

// endIdle ends idle interpreters, and records the use of one.
func (k *kernels) endIdle(ctx context.Context, name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	for other, at := range k.used {
		if now.Sub(at) < k.idleTimeout || other == name || strings.HasSuffix(other, "/"+mainKernel) {
			continue
		}
		if err := k.remote.Remove(ctx, other); err != nil {
			return err
		}
		delete(k.used, other)
	}
	k.used[name] = now
	return nil
}
