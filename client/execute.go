package client

import (
	"context"
	"encoding/json"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/internal/inside/interpreter"
)

// Execution is the result of a piece of code.
type Execution struct {
	// Stdout and Stderr are what the code printed.
	Stdout, Stderr string
	// Results are the values that the code displayed, and the value of its last expression.
	Results []ExecutionResult
	// Error is the exception that ended the code; nil if there was none.
	Error *ExecutionError
}

// ExecutionResult is a value in one or more representations. Absent ones are "".
type ExecutionResult struct {
	Text, HTML, Markdown, LaTeX, SVG string
	// PNG and JPEG are images as base64.
	PNG, JPEG string
	// JSON is the value as JSON, if it has such a representation.
	JSON json.RawMessage
	// Main reports that it is the value of the last expression.
	Main bool
}

// ExecutionError is an exception. Bash has the name "ExitCode" and the status as its value; a
// kernel that ended has the name "KernelDied".
type ExecutionError struct{ Name, Value, Traceback string }

// Execute runs code in the sandbox's interpreter: Python, JavaScript, TypeScript or bash. Code
// of one language shares its variables with earlier calls on the same Sandbox value, until
// CloseInterpreter. Code that fails is no error: see Execution.Error. When ctx ends, the code is
// interrupted.
//
// Invalid: the language. Unsupported: the image has no program for it. Exhausted: the output is
// too large.
func (s *Sandbox) Execute(ctx context.Context, language, code string) (Execution, error) {
	var e Execution
	size := 0
	err := s.interpreter.Run(ctx, interpreter.Cell{Context: language, Language: language, Code: code}, func(event interpreter.Event) error {
		size += e.add(event)
		if size > maxResponse {
			return sandpit.Errorf(sandpit.Exhausted, "the code's output has more than %d bytes", maxResponse)
		}
		return nil
	})
	return e, err
}

// CloseInterpreter ends the interpreter that Execute started, and with it all variables. It is
// not needed before the sandbox is deleted. Execute cannot be called afterwards.
func (s *Sandbox) CloseInterpreter() error { return s.interpreter.Close() }

// add adds an event to the result, and returns its size in bytes.
func (e *Execution) add(event interpreter.Event) int {
	switch event := event.(type) {
	case interpreter.Output:
		if event.Stream == interpreter.Stderr {
			e.Stderr += event.Text
		} else {
			e.Stdout += event.Text
		}
		return len(event.Text)
	case interpreter.Result:
		r := ExecutionResult{
			Text: decodeText(event.Text), HTML: decodeText(event.HTML), Markdown: decodeText(event.Markdown), LaTeX: decodeText(event.LaTeX),
			SVG: decodeText(event.SVG), PNG: decodeText(event.PNG), JPEG: decodeText(event.JPEG), JSON: event.JSON, Main: event.Main,
		}
		e.Results = append(e.Results, r)
		return len(r.Text) + len(r.HTML) + len(r.Markdown) + len(r.LaTeX) + len(r.SVG) + len(r.PNG) + len(r.JPEG) + len(r.JSON)
	case interpreter.Failure:
		e.Error = &ExecutionError{Name: event.Name, Value: event.Value, Traceback: event.Traceback}
		return len(event.Name) + len(event.Value) + len(event.Traceback)
	}
	return 0
}

// decodeText returns a representation that is a JSON string; anything else is "".
func decodeText(raw json.RawMessage) string {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return ""
	}
	return text
}
