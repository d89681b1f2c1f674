package tool

import (
	"fmt"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// Result is the result of a call.
type Result struct {
	// Text is the result for a model: bounded, valid UTF-8, without secrets.
	Text string `json:"text"`
	// Data is the result for programs, nil if there is nothing to add.
	Data any `json:"data,omitempty"`
	// Images are images of the result.
	Images []Image `json:"images,omitempty"`
	// Failed is true if a command exited with a status other than 0, or if Problem is set.
	Failed bool `json:"failed,omitempty"`
	// Problem is the error of a call that did not complete.
	Problem *Problem `json:"problem,omitempty"`
	// SavedTo is the file in the sandbox with the complete text, if Text is truncated.
	SavedTo string `json:"saved_to,omitempty"`
}

// Image is an encoded image.
type Image struct {
	MIME string `json:"mime"`
	Data []byte `json:"data"`
}

// Problem is an error for a client.
type Problem struct {
	Code    sandpit.Code `json:"code"`
	Message string       `json:"message"`
	Hint    string       `json:"hint,omitempty"`
}

// withProblem adds an error to a result, before its text. The message may quote the beginning of a
// program's output.
func (s *Session) withProblem(r Result, err error, hint string) Result {
	p := &Problem{Code: sandpit.CodeOf(err), Message: s.secretSet().maskCut(err.Error(), false, true), Hint: hint}
	text := "ERROR: " + p.Message
	if p.Hint != "" {
		text += " (" + p.Hint + ")"
	}
	if r.Text != "" {
		text += "\n" + r.Text
	}
	r.Text, r.Failed, r.Problem = text, true, p
	return r
}

const noOutput = "(no output)"

// commandText returns the text for a finished command.
func commandText(exit int, output string) string {
	if strings.TrimSpace(output) == "" {
		output = noOutput
	}
	if exit == 0 {
		return "[SUCCESS]\n" + output
	}
	return fmt.Sprintf("[FAILED (exit %d)]\n%s", exit, output)
}
