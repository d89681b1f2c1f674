package tool

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
)

// maxInput bounds the input of a call, in bytes.
const maxInput = 16 << 20

// Call is what is told of a call afterwards: for an audit, so without input or output.
type Call struct {
	Tool    string
	Session string
	Took    time.Duration
	// Code is "" if the call went well, Failed true also for a command with another
	// status than 0.
	Code   sandpit.Code
	Failed bool
	// Input and Output are sizes in bytes.
	Input, Output int
}

// Registry knows tools by name. It does not change and may be used concurrently.
type Registry struct {
	tools  []Tool
	names  map[string]Tool // aliases too
	hidden *regexp.Regexp  // names of tools that are not offered
	audit  func(Call)
	// commandTimeout is as WithCommandTimeout says.
	commandTimeout time.Duration
}

// New returns a registry of all tools, or of those in the categories. Audit is told of
// each call when it has ended; nil: nobody is.
//
// Invalid: no such category.
func New(audit func(Call), categories ...Category) (*Registry, error) {
	for _, c := range categories {
		if !slices.Contains(Categories(), c) {
			return nil, sandpit.Errorf(sandpit.Invalid, "there is no category of tools %.100q; there are %s", string(c), strings.Join(categoryNames(), ", "))
		}
	}
	return newRegistry(audit, func(t Tool) bool { return len(categories) == 0 || slices.Contains(categories, t.Category) })
}

// newRegistry returns a registry of the tools that offered accepts.
func newRegistry(audit func(Call), offered func(Tool) bool) (*Registry, error) {
	r := &Registry{names: map[string]Tool{}, hidden: hiddenNames(offered), audit: audit}
	for _, t := range allTools() {
		if !offered(t) {
			continue
		}
		t, err := t.withSchema()
		if err != nil {
			return nil, err
		}
		t.Description = r.withoutHidden(t.Description)
		for _, name := range append([]string{t.Name}, t.Aliases...) {
			if _, taken := r.names[name]; taken {
				return nil, fmt.Errorf("there are two tools named %s", name)
			}
			r.names[name] = t
		}
		r.tools = append(r.tools, t)
	}
	return r, nil
}

// allTools are the definitions, in the order of categories.
func allTools() []Tool {
	return slices.Concat(fileTools(), searchTools(), shellTools(), gitTools(), webTools(), systemTools(), pythonTools(), codeTools(), browserTools(), mcpTools(), compoundTools())
}

// Categories returns all categories.
func Categories() []Category {
	return []Category{File, Search, Shell, Git, Web, System, Python, Code, Browser, MCP, Compound}
}

func categoryNames() []string {
	var names []string
	for _, c := range Categories() {
		names = append(names, string(c))
	}
	return names
}

// Audited returns a registry of the same tools that tells audit of each call.
func (r *Registry) Audited(audit func(Call)) *Registry {
	other := *r
	other.audit = audit
	return &other
}

// Tools returns the tools in a fixed order, those of a category together.
func (r *Registry) Tools() []Tool { return slices.Clone(r.tools) }

// Tool returns a tool by its name or an alias. NotFound.
func (r *Registry) Tool(name string) (Tool, error) {
	t, ok := r.names[name]
	switch {
	case ok:
		return t, nil
	case Exists(name):
		return Tool{}, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "the tool %.100q is not among those that this connection offers", name),
			"use one of those in the list; the user can add it: sandpit mcp --tools default,"+namesFor(name)[0]+", or /mcp?tools=default,"+namesFor(name)[0])
	}
	return Tool{}, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "there is no tool %.100q", name), "list the tools to see their names")
}

// Invoke calls a tool with a JSON object as its input. What goes wrong, a panic
// included, is in the Result, and the session goes on.
func (r *Registry) Invoke(ctx context.Context, s *Session, name string, input []byte) Result {
	begun := time.Now()
	if t, known := r.names[name]; known {
		name = t.Name // what is kept and reported has one name
	}
	result, err := r.invokeTool(context.WithValue(ctx, registryKey{}, r), s, name, input)
	if err != nil {
		result = s.withProblem(result, err, firstAllowed(context.WithValue(ctx, registryKey{}, r), sandpit.HintOf(err)))
	}
	result = s.boundResult(ctx, name, result)
	if r.audit != nil {
		call := Call{Tool: name, Session: s.ID(), Took: time.Since(begun), Failed: result.Failed, Input: len(input), Output: len(result.Text)}
		if result.Problem != nil {
			call.Code = result.Problem.Code
		}
		r.audit(call)
	}
	return result
}

func (r *Registry) invokeTool(ctx context.Context, s *Session, name string, input []byte) (result Result, err error) {
	t, err := r.Tool(name)
	if err != nil {
		return Result{}, err
	}
	defer func() {
		if cause := recover(); cause != nil {
			err = sandpit.Errorf(sandpit.Internal, "the tool %s has failed: %v", t.Name, cause)
		}
	}()
	if len(input) > maxInput {
		return Result{}, sandpit.Errorf(sandpit.Invalid, "the input of a tool has at most %d bytes", maxInput)
	}
	decoded, err := t.decodeInput(input)
	if err != nil {
		return Result{}, err
	}
	usual := r.defaultCommandTimeout(t)
	limited, cancel := context.WithTimeout(context.WithValue(ctx, commandTimeoutKey{}, usual), t.Timeout+cmp.Or(requestedTime(decoded), usual))
	defer cancel()
	result, err = t.function.invoke(limited, s, decoded)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		err = sandpit.Errorf(sandpit.Timeout, "the tool %s took too long and was stopped: %w", t.Name, err)
	}
	return result, err
}

// WithCommandTimeout returns a registry of the same tools, whose commands may take so long if
// their input names no time. Zero leaves each tool its own default.
func (r *Registry) WithCommandTimeout(limit time.Duration) *Registry {
	limited := *r
	limited.commandTimeout = limit
	return &limited
}

// defaultCommandTimeout is how long a command of a tool may take for which its input names no time.
func (r *Registry) defaultCommandTimeout(t Tool) time.Duration {
	if t.commandTimeout > 0 && r.commandTimeout > 0 {
		return r.commandTimeout
	}
	return t.commandTimeout
}

type commandTimeoutKey struct{}

// commandSeconds is what defaultCommandTimeout was for the call of a context.
func commandSeconds(ctx context.Context) float64 {
	usual, ok := ctx.Value(commandTimeoutKey{}).(time.Duration)
	if !ok || usual == 0 {
		usual = shellTimeout
	}
	return usual.Seconds()
}

// requestedTime is how long the input itself says that the call may take.
func requestedTime(input []byte) time.Duration {
	var in struct {
		Timeout float64 `json:"timeout"`
		Seconds float64 `json:"seconds"`
	}
	if json.Unmarshal(input, &in) != nil {
		return 0 // fields of these names that are no numbers ask for nothing
	}
	return time.Duration(max(in.Timeout, in.Seconds, 0) * float64(time.Second))
}
