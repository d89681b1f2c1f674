package interpreter

import (
	"encoding/json"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// Event is something that happens in a run: an Output, a Result, a Failure, a Count, an Alive or an End. As JSON it
// is an object with a "type", in the form that E2B's clients expect.
type Event interface{ event() }

// Stream is an output stream of a program.
type Stream string

// The streams.
const (
	Stdout Stream = "stdout"
	Stderr Stream = "stderr"
)

// Output is a piece of a program's output. It may begin and end within a line, but not within a character.
type Output struct {
	Stream Stream    `json:"type"`
	Text   string    `json:"text"`
	Time   time.Time `json:"timestamp"`
}

// Result is a value in one or more representations from a kernel. Each field is the JSON value of a MIME type, absent
// if the kernel did not send it.
type Result struct {
	Text       json.RawMessage            `json:"text,omitempty"`
	HTML       json.RawMessage            `json:"html,omitempty"`
	Markdown   json.RawMessage            `json:"markdown,omitempty"`
	SVG        json.RawMessage            `json:"svg,omitempty"`
	PNG        json.RawMessage            `json:"png,omitempty"`  // base64
	JPEG       json.RawMessage            `json:"jpeg,omitempty"` // base64
	PDF        json.RawMessage            `json:"pdf,omitempty"`  // base64
	LaTeX      json.RawMessage            `json:"latex,omitempty"`
	JSON       json.RawMessage            `json:"json,omitempty"`
	JavaScript json.RawMessage            `json:"javascript,omitempty"`
	Data       json.RawMessage            `json:"data,omitempty"`  // a table: an object with a list for each column
	Chart      json.RawMessage            `json:"chart,omitempty"` // what a figure shows, in the form of E2B's charts
	Extra      map[string]json.RawMessage `json:"extra,omitempty"` // by other MIME types
	Main       bool                       `json:"is_main_result"`  // the value of the last expression, not something displayed
}

// Failure says how the code failed. A run has at most one Failure that the code caused.
type Failure struct {
	Name      string `json:"name"` // the class of the exception, or one of the Fail names
	Value     string `json:"value"`
	Traceback string `json:"traceback"`
}

// Names of failures that are not exceptions of a language.
const (
	FailKernel = "KernelDied" // the kernel has ended; its variables are lost
	FailExit   = "ExitCode"   // bash: the last command's status, in Value, is not 0
)

// Count is the number of a run in its kernel, from 1.
type Count struct {
	Number int `json:"execution_count"`
}

// Alive reports that a run without output is still running.
type Alive struct{}

// End is the last event of a run.
type End struct{}

func (Output) event()  {}
func (Result) event()  {}
func (Failure) event() {}
func (Count) event()   {}
func (Alive) event()   {}
func (End) event()     {}

// MarshalJSON adds the type.
func (r Result) MarshalJSON() ([]byte, error) {
	type plain Result
	return json.Marshal(struct {
		Type string `json:"type"`
		plain
	}{"result", plain(r)})
}

// MarshalJSON adds the type.
func (f Failure) MarshalJSON() ([]byte, error) {
	type plain Failure
	return json.Marshal(struct {
		Type string `json:"type"`
		plain
	}{"error", plain(f)})
}

// MarshalJSON adds the type.
func (c Count) MarshalJSON() ([]byte, error) {
	type plain Count
	return json.Marshal(struct {
		Type string `json:"type"`
		plain
	}{"number_of_executions", plain(c)})
}

// MarshalJSON is the type.
func (Alive) MarshalJSON() ([]byte, error) { return []byte(`{"type":"keepalive"}`), nil }

// MarshalJSON is the type.
func (End) MarshalJSON() ([]byte, error) { return []byte(`{"type":"end_of_execution"}`), nil }

// newResult assigns a kernel's representations to fields by their MIME types.
func newResult(data map[string]json.RawMessage, main bool) Result {
	r := Result{Main: main}
	known := map[string]*json.RawMessage{
		"text/plain": &r.Text, "text/html": &r.HTML, "text/markdown": &r.Markdown, "text/latex": &r.LaTeX,
		"image/svg+xml": &r.SVG, "image/png": &r.PNG, "image/jpeg": &r.JPEG, "application/pdf": &r.PDF,
		"application/json": &r.JSON, "application/javascript": &r.JavaScript, "e2b/data": &r.Data, "e2b/chart": &r.Chart,
	}
	for mime, value := range data {
		if field, ok := known[mime]; ok {
			*field = value
			continue
		}
		if r.Extra == nil {
			r.Extra = make(map[string]json.RawMessage)
		}
		r.Extra[mime] = value
	}
	return r
}

// parseEvent parses the JSON form of an event.
func parseEvent(data []byte) (Event, error) {
	var kind struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(data, &kind); err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "an event of the interpreter: %w", err)
	}
	switch kind.Type {
	case string(Stdout), string(Stderr):
		return eventOf[Output](data)
	case "result":
		return eventOf[Result](data)
	case "error":
		return eventOf[Failure](data)
	case "number_of_executions":
		return eventOf[Count](data)
	case "keepalive":
		return Alive{}, nil
	case "end_of_execution":
		return End{}, nil
	}
	return nil, sandpit.Errorf(sandpit.Internal, "an event of the interpreter of type %.40q", kind.Type)
}

func eventOf[E Event](data []byte) (Event, error) {
	var e E
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, sandpit.Errorf(sandpit.Internal, "an event of the interpreter: %w", err)
	}
	return e, nil
}
