package tool

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/sandpit-dev/sandpit"
)

// Added is a tool that a program adds to a registry.
type Added struct {
	Name, Title, Description string
	// Category is for lists of tools. It may be one that New does not know.
	Category Category
	Hints    Hints
	// Timeout bounds a call. Default: a minute.
	Timeout time.Duration
	// Schema is the JSON schema of the input, an object. Default: any object.
	Schema json.RawMessage
	// Unchecked inputs are not compared with Schema: the function does it.
	Unchecked bool
	// NoSandbox is true for a function that needs no session, which is then nil.
	NoSandbox bool
	// Call is the function. The input is a JSON object that Schema allows, with its defaults.
	Call func(ctx context.Context, s *Session, input json.RawMessage) (Result, error)
}

// rawFunction is a toolFunction with a schema that is data.
type rawFunction struct{ Added }

// anyObject is the schema of any object.
const anyObject = `{"type":"object"}`

func (f rawFunction) inputSchema() (*jsonschema.Schema, error) {
	text := f.Schema
	if len(text) == 0 || f.Unchecked {
		text = json.RawMessage(anyObject)
	}
	schema := &jsonschema.Schema{}
	if err := json.Unmarshal(text, schema); err != nil {
		return nil, fmt.Errorf("schema: %w", err)
	}
	return schema, nil
}

func (f rawFunction) invoke(ctx context.Context, s *Session, input []byte) (Result, error) {
	if s == nil && !f.NoSandbox {
		return Result{}, sandpit.Errorf(sandpit.Internal, "tool %s: the session is missing", f.Name)
	}
	return f.Call(ctx, s, input)
}

// toTool returns the definition of an added tool.
func (a Added) toTool() (Tool, error) {
	t, err := Tool{
		Name: a.Name, Title: a.Title, Description: a.Description, Category: a.Category, Hints: a.Hints, Timeout: a.Timeout, function: rawFunction{a},
	}.withSchema()
	if err != nil {
		return t, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	if a.Unchecked && len(a.Schema) > 0 {
		t.shown = a.Schema
	}
	return t, nil
}

// With returns a registry that has further tools.
//
// Invalid: a name or schema. AlreadyExists: a tool of that name.
func (r *Registry) With(added ...Added) (*Registry, error) {
	more := *r
	more.tools, more.names = slices.Clone(r.tools), maps.Clone(r.names)
	for _, a := range added {
		if a.Name == "" {
			return nil, sandpit.Errorf(sandpit.Invalid, "a tool has no name")
		}
		if _, taken := more.names[a.Name]; taken {
			return nil, sandpit.Errorf(sandpit.AlreadyExists, "there is a tool named %.100s already", a.Name)
		}
		t, err := a.toTool()
		if err != nil {
			return nil, err
		}
		more.names[t.Name], more.tools = t, append(more.tools, t)
	}
	return &more, nil
}

// NeedsSandbox reports whether a call of the tool needs a session.
func (t Tool) NeedsSandbox() bool {
	f, ok := t.function.(rawFunction)
	return !ok || !f.NoSandbox
}

// InputSchema returns the JSON schema of the input for a model.
func (t Tool) InputSchema() (json.RawMessage, error) {
	if t.shown != nil {
		return t.shown, nil
	}
	return json.Marshal(t.Schema())
}
