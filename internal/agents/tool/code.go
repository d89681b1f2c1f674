package tool

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
)

// codeTimeout is what may come on top of the time that code is given: the start of a kernel, and the end of code that
// is interrupted.
const codeTimeout = 3 * time.Minute

func pythonTools() []Tool {
	run := Hints{Destructive: true, OpenWorld: true}
	return []Tool{
		{
			Name: "python_exec", Title: "Run Python", Category: Python, Hints: run, Timeout: codeTimeout, Aliases: []string{"python_execute"},
			Description: "Run Python code. Variables, functions and imports stay from one call to the next, the value of the last expression is shown, " +
				"and so are pictures of matplotlib. Code that takes too long is interrupted and keeps its variables.",
			function: newFunction(pythonExec),
		}, {
			Name: "jupyter_execute", Title: "Run code in a kernel", Category: Python, Hints: run, Timeout: codeTimeout,
			Description: "Run code as a cell of a notebook does: each session_id has variables of its own, the one named main those of python_exec. " +
				"Others end after 30 minutes without a call.",
			function: newFunction(jupyterExecute),
		}, {
			Name: "pip_install", Title: "Install Python packages", Category: Python, Hints: Hints{Idempotent: true, OpenWorld: true}, Timeout: 10 * time.Minute,
			Description: "Install Python packages with pip, as far as the sandbox's network policy lets it reach an index. They can be imported at once.",
			function:    newFunction(pipInstall), synonyms: map[string]string{"package": "packages", "requirements": "requirements_file"},
		},
	}
}

func codeTools() []Tool {
	run := Hints{Destructive: true, OpenWorld: true}
	return []Tool{
		{
			Name: "javascript_execute", Title: "Run JavaScript", Category: Code, Hints: run, Timeout: codeTimeout,
			Description: "Run JavaScript in Node.js. Variables stay from one call to the next, await works, and the value of the last expression is shown.",
			function:    newFunction(javascriptExecute),
		}, {
			Name: "nodejs_execute", Title: "Run a program in Node.js", Category: Code, Hints: run, Timeout: codeTimeout,
			Description: "Run a JavaScript program in a Node.js of its own, with an input and files beside it, which are removed afterwards. Nothing stays from one call to the next.",
			function:    newFunction(nodeExecute),
		}, {
			Name: "code_execute", Title: "Run code", Category: Code, Hints: run, Timeout: codeTimeout,
			Description: "Run code in a language. Variables stay from one call to the next, but those of nodejs.",
			function:    newFunction(codeExecute),
		},
	}
}

type pythonInput struct {
	Code    string  `json:"code" jsonschema:"the code"`
	Timeout float64 `json:"timeout,omitempty" jsonschema:"seconds after which it is interrupted" default:"30" range:"0,3600"`
	Reset   bool    `json:"reset,omitempty" jsonschema:"forget all variables first; also ends what runs" default:"false"`
}

func pythonExec(ctx context.Context, s *Session, in pythonInput) (Result, error) {
	return s.kernels.runCell(ctx, cellRequest{language: interpreter.Python, session: mainKernel, code: in.Code, seconds: in.Timeout, reset: in.Reset})
}

type javascriptInput struct {
	Code    string  `json:"code" jsonschema:"the code"`
	Timeout float64 `json:"timeout,omitempty" jsonschema:"seconds after which it is interrupted" default:"30" range:"0,3600"`
	Reset   bool    `json:"reset,omitempty" jsonschema:"forget all variables first; also ends what runs" default:"false"`
}

func javascriptExecute(ctx context.Context, s *Session, in javascriptInput) (Result, error) {
	return s.kernels.runCell(ctx, cellRequest{language: interpreter.JavaScript, session: mainKernel, code: in.Code, seconds: in.Timeout, reset: in.Reset})
}

type codeInput struct {
	Language string  `json:"language" jsonschema:"its language" enum:"python,javascript,typescript,bash,nodejs"`
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
	Kernel  string  `json:"kernel_name,omitempty" jsonschema:"what runs it; python3.11 and the like insist on a version" enum:"python3,python3.9,python3.10,python3.11,python3.12,python3.13,python3.14,javascript,typescript,bash" default:"python3"`
	Session string  `json:"session_id,omitempty" jsonschema:"name of the variables to be used; new for a name that is new" default:"main"`
}

func jupyterExecute(ctx context.Context, s *Session, in jupyterInput) (Result, error) {
	if !sessionPattern.MatchString(in.Session) {
		return Result{}, sandpit.Errorf(sandpit.Invalid, "session_id %.100q: want letters, digits, and inside also - _ and dots, at most 64", in.Session)
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

// mainKernel is the session_id of the kernels that all tools for code share.
const mainKernel = "main"

// cellRequest is code for a kernel.
type cellRequest struct {
	language, session, code string
	seconds                 float64
	reset                   bool
}

func (r cellRequest) contextName() string { return r.language + "/" + r.session }

// runCell runs code and tells what came of it.
func (k *kernels) runCell(ctx context.Context, r cellRequest) (Result, error) {
	if err := k.endIdle(ctx, r.contextName()); err != nil {
		return Result{}, err
	}
	if r.reset {
		if err := k.remote.Restart(ctx, r.contextName()); err != nil {
			return Result{}, err
		}
		if strings.TrimSpace(r.code) == "" {
			return Result{Text: "All variables are forgotten"}, nil
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
		err = sandpit.WithHint(err, firstAllowed(ctx, "use an image that has it, or install it with shell_exec", "use an image that has it"))
	}
	result := out.toResult()
	if err != nil {
		return Result{Text: result.Text}, err
	}
	return result, nil
}

// checkVersion refuses a version of Python that is not the image's.
func (k *kernels) checkVersion(ctx context.Context, session, version string) error {
	r := cellRequest{language: interpreter.Python, session: session, seconds: 60, code: `"%d.%d" % __import__("sys").version_info[:2]`}
	result, err := k.runCell(ctx, r)
	if err != nil {
		return err
	}
	data, ok := result.Data.(cellData)
	if !ok || len(data.Results) != 1 || data.Results[0].Text != version {
		return sandpit.Errorf(sandpit.Unsupported, "this image has no Python %s but another: %.100s", version, result.Text)
	}
	return nil
}

// kernelIdleTimeout is how long a kernel other than the main ones lives without a call.
const kernelIdleTimeout = 30 * time.Minute

// endIdle ends kernels that no call has used for long.
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
