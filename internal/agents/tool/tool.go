// Package tool defines the tools of agents in a sandbox. Each tool is defined once, with a name, a
// JSON schema of its input and a function, for every front end (MCP, command line, agents).
//
// A Registry contains the tools; a Session is the working context in a sandbox. Input of a
// model is checked against the schema before the tool runs. Output is bounded: the model gets
// the beginning and the end, and a file of the sandbox has the complete output. Only shell
// tools pass input to a shell. Output is data that others may have written (web pages, files,
// programs); a front end must not treat it as instructions.
package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sandpit-dev/sandpit"
)

// Category groups tools, so that a client can be offered a subset.
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
	// Browser are tools for pages, and for images of any kind.
	Browser Category = "browser"
	MCP     Category = "mcp"
	// Compound are tools that combine several other tools.
	Compound Category = "compound"
)

// Hints describe the effects of a tool.
type Hints struct {
	// ReadOnly: it changes nothing. Destructive: it may delete or overwrite data. Idempotent: a
	// repeated call with the same input has no further effect. OpenWorld: it accesses systems
	// outside of the sandbox.
	ReadOnly    bool `json:"read_only,omitempty"`
	Destructive bool `json:"destructive,omitempty"`
	Idempotent  bool `json:"idempotent,omitempty"`
	OpenWorld   bool `json:"open_world,omitempty"`
}

// Tool is a tool that agents can call.
type Tool struct {
	Name        string   `json:"name"`
	Title       string   `json:"title"`
	Category    Category `json:"category"`
	Description string   `json:"description"`
	// Aliases are alternative names.
	Aliases []string `json:"aliases,omitempty"`
	Hints   Hints    `json:"hints"`
	// Timeout bounds a call, in addition to a timeout in the input.
	Timeout time.Duration `json:"timeout"`

	// commandTimeout bounds the tool's command, in addition to Timeout, if the input has no
	// timeout. Zero: the tool runs no command.
	commandTimeout time.Duration
	// synonyms map alternative names of input fields to their names.
	synonyms map[string]string
	function toolFunction
	schema   *jsonschema.Resolved
	// shown is the schema for models, if it is not that for checks.
	shown json.RawMessage
}

// Schema returns the JSON schema of the input.
func (t Tool) Schema() *jsonschema.Schema { return t.schema.Schema() }

// Function is a tool in the format of OpenAI's API, which other model APIs accept too.
type Function struct {
	Type     string `json:"type"` // "function"
	Function struct {
		Name        string             `json:"name"`
		Description string             `json:"description"`
		Parameters  *jsonschema.Schema `json:"parameters"`
	} `json:"function"`
}

// Function returns the description of the tool for a model.
func (t Tool) Function() Function {
	f := Function{Type: "function"}
	f.Function.Name, f.Function.Description, f.Function.Parameters = t.Name, t.Description, t.Schema()
	return f
}

// toolFunction is the function of a tool with the type of its input.
type toolFunction interface {
	inputSchema() (*jsonschema.Schema, error)
	invoke(ctx context.Context, s *Session, input []byte) (Result, error)
}

// typedFunction is a toolFunction with input of type In.
type typedFunction[In any] func(ctx context.Context, s *Session, in In) (Result, error)

func (f typedFunction[In]) inputSchema() (*jsonschema.Schema, error) { return schemaOf[In]() }

func (f typedFunction[In]) invoke(ctx context.Context, s *Session, input []byte) (Result, error) {
	var in In
	if err := json.Unmarshal(input, &in); err != nil {
		return Result{}, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	return f(ctx, s, in)
}

// newFunction converts a function to a toolFunction. It infers the type of the input.
func newFunction[In any](f func(context.Context, *Session, In) (Result, error)) toolFunction {
	return typedFunction[In](f)
}

// defaultTimeout is the Timeout of tools that do not set one.
const defaultTimeout = 60 * time.Second

// withSchema sets the tool's schema and default timeout.
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

// decodeInput checks an input, renames synonyms, and adds default values.
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
		return nil, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "invalid input: %w", err), "see the schema of "+t.Name)
	}
	return json.Marshal(fields)
}
