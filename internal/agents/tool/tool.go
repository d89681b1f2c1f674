// Package tool is what agents do in a sandbox: each tool is defined once, with a name, a
// JSON schema of its input and a function, and is the same for every front end (MCP,
// command line, an agent of ours).
//
// A Registry knows the tools; a Session is the place in which they work. What a model
// sends is checked against the schema before anything happens, what it gets back is
// bounded: the beginning and the end stay, all of it is kept in a file of the sandbox.
// No input passes through a shell but that of the shell tools. What comes back from the
// sandbox is data that somebody else may have written (web pages, files, programs);
// whoever shows it to a model must not take it for instructions.
package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sandpit-dev/sandpit"
)

// Category groups tools, so that a client need not be given all of them.
type Category string

// The categories.
const (
	File   Category = "file"
	Search Category = "search"
	Shell  Category = "shell"
	Git    Category = "git"
	Web    Category = "web"
	System Category = "system"
	Python Category = "python"
	Code   Category = "code"
	// Browser is pages, and pictures of any kind.
	Browser Category = "browser"
	MCP     Category = "mcp"
	// Compound are tools for a whole subject each, which do what others do too.
	Compound Category = "compound"
)

// Hints tell a client what calls of a tool may do.
type Hints struct {
	// ReadOnly changes nothing. Destructive may remove what was there. Idempotent can be
	// called again with the same input without further effect. OpenWorld reaches things
	// outside of the sandbox.
	ReadOnly    bool `json:"read_only,omitempty"`
	Destructive bool `json:"destructive,omitempty"`
	Idempotent  bool `json:"idempotent,omitempty"`
	OpenWorld   bool `json:"open_world,omitempty"`
}

// Tool is one thing that agents can do.
type Tool struct {
	Name        string   `json:"name"`
	Title       string   `json:"title"`
	Category    Category `json:"category"`
	Description string   `json:"description"`
	// Aliases are other names by which it can be called.
	Aliases []string `json:"aliases,omitempty"`
	Hints   Hints    `json:"hints"`
	// Timeout is how long a call may take at most, in addition to a time that the input
	// itself asks for.
	Timeout time.Duration `json:"timeout"`

	// commandTimeout is how long a command may take that the tool runs and for which the input names
	// no time, in addition. Zero: it runs none.
	commandTimeout time.Duration
	// synonyms are other names of fields of the input.
	synonyms map[string]string
	function toolFunction
	schema   *jsonschema.Resolved
}

// Schema describes the input as JSON schema.
func (t Tool) Schema() *jsonschema.Schema { return t.schema.Schema() }

// Function is a tool as the APIs of models take it, in the form that OpenAI's began with.
type Function struct {
	Type     string `json:"type"` // "function"
	Function struct {
		Name        string             `json:"name"`
		Description string             `json:"description"`
		Parameters  *jsonschema.Schema `json:"parameters"`
	} `json:"function"`
}

// Function describes the tool for a model.
func (t Tool) Function() Function {
	f := Function{Type: "function"}
	f.Function.Name, f.Function.Description, f.Function.Parameters = t.Name, t.Description, t.Schema()
	return f
}

// toolFunction is what a tool does with an input of a type.
type toolFunction interface {
	inputSchema() (*jsonschema.Schema, error)
	invoke(ctx context.Context, s *Session, input []byte) (Result, error)
}

// typedFunction is a body whose input is an In.
type typedFunction[In any] func(ctx context.Context, s *Session, in In) (Result, error)

func (f typedFunction[In]) inputSchema() (*jsonschema.Schema, error) { return schemaOf[In]() }

func (f typedFunction[In]) invoke(ctx context.Context, s *Session, input []byte) (Result, error) {
	var in In
	if err := json.Unmarshal(input, &in); err != nil {
		return Result{}, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	return f(ctx, s, in)
}

// newFunction is shorter to write for a function, whose type then need not be said.
func newFunction[In any](f func(context.Context, *Session, In) (Result, error)) toolFunction {
	return typedFunction[In](f)
}

// defaultTimeout is for tools that say nothing.
const defaultTimeout = 60 * time.Second

// withSchema completes a tool.
func (t Tool) withSchema() (Tool, error) {
	if t.Timeout == 0 {
		t.Timeout = defaultTimeout
	}
	schema, err := t.function.inputSchema()
	if err == nil {
		t.schema, err = schema.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	}
	if err != nil {
		return t, fmt.Errorf("tool %s: %w", t.Name, err)
	}
	return t, nil
}

// decodeInput checks an input and adds what it leaves out.
func (t Tool) decodeInput(raw []byte) ([]byte, error) {
	fields := map[string]any{}
	if len(raw) > 0 {
		if err := json.Unmarshal(raw, &fields); err != nil {
			return nil, sandpit.Errorf(sandpit.Invalid, "the input is not a JSON object: %w", err)
		}
	}
	if fields == nil { // null
		fields = map[string]any{}
	}
	for other, name := range t.synonyms {
		value, given := fields[other]
		if _, also := fields[name]; given && !also {
			fields[name] = value
			delete(fields, other)
		}
	}
	if err := t.schema.ApplyDefaults(&fields); err != nil {
		return nil, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	if err := t.schema.Validate(fields); err != nil {
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "the input does not fit: %w", err), "see the schema of "+t.Name)
	}
	return json.Marshal(fields)
}
