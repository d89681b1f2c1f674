package tool

import (
	"fmt"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// Result is what came of a call.
type Result struct {
	// Text is what a model reads: bounded, valid UTF-8, without secrets.
	Text string `json:"text"`
	// Data is the same for programs, nil if there is nothing to add.
	Data any `json:"data,omitempty"`
	// Images are pictures that belong to it.
	Images []Image `json:"images,omitempty"`
	// Failed is true if a command ended with another status than 0, or Problem is set.
	Failed bool `json:"failed,omitempty"`
	// Problem is why the call did not happen, or not to its end.
	Problem *Problem `json:"problem,omitempty"`
	// SavedTo is the file in the sandbox with the whole text, if Text is cut.
	SavedTo string `json:"saved_to,omitempty"`
}

// Image is a picture.
type Image struct {
	MIME string `json:"mime"`
	Data []byte `json:"data"`
}

// Problem is an error as a client gets it.
type Problem struct {
	Code    sandpit.Code `json:"code"`
	Message string       `json:"message"`
	Hint    string       `json:"hint,omitempty"`
}

// withProblem is a Result for an error, whose message may quote the beginning of what a program has said. What the result
// held so far stays, below.
func (s *Session) withProblem(r Result, err error, hint string) Result {
	p := &Problem{Code: sandpit.CodeOf(err), Message: s.maskCut(err.Error(), false, true), Hint: hint}
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

// commandText is how the end of a command reads.
func commandText(exit int, output string) string {
	if strings.TrimSpace(output) == "" {
		output = noOutput
	}
	if exit == 0 {
		return "[SUCCESS]\n" + output
	}
	return fmt.Sprintf("[FAILED (exit %d)]\n%s", exit, output)
}
