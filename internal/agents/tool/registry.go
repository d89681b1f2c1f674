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

// Call describes a finished call for the audit trail, without input and output.
type Call struct {
	Tool    string
	Session string
	Took    time.Duration
	// Code is "" if the call succeeded. Failed is also true for a command with an exit status
	// other than 0.
	Code   sandpit.Code
	Failed bool
	// Input and Output are sizes in bytes.
	Input, Output int
}

// Registry is a set of tools. It is immutable and may be used concurrently. With adds tools to a
// copy.
type Registry struct {
	tools  []Tool
	names  map[string]Tool // aliases too
	hidden *regexp.Regexp  // names of tools that are not offered
	audit  func(Call)
	// commandTimeout is set by WithCommandTimeout.
	commandTimeout time.Duration
}

// New returns a registry of all tools, or of those in the categories. It calls audit, unless that is
// nil, after each call.
//
// Invalid: no such category.
func New(audit func(Call), categories ...Category) (*Registry, error) {
	for _, c := range categories {
		if !slices.Contains(Categories(), c) {
			return nil, sandpit.Errorf(sandpit.Invalid, "unknown category of tools %.100q; want one of %s", string(c), strings.Join(categoryNames(), ", "))
		}
	}
	return newRegistry(audit, func(t Tool) bool { return len(categories) == 0 || slices.Contains(categories, t.Category) })
}

// newRegistry returns a registry of the tools for which offered is true.
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

// allTools returns all definitions, in the order of categories.
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

// Audited returns a registry of the same tools that calls audit after each call.
func (r *Registry) Audited(audit func(Call)) *Registry {
	other := *r
	other.audit = audit
	return &other
}

// Tools returns the tools in a fixed order, by category.
func (r *Registry) Tools() []Tool { return slices.Clone(r.tools) }

// Tool returns a tool by its name or an alias. NotFound: no such tool, or it is not offered.
func (r *Registry) Tool(name string) (Tool, error) {
	t, ok := r.names[name]
	switch {
	case ok:
		return t, nil
	case Exists(name):
		return Tool{}, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "this connection does not offer the tool %.100q", name),
			"use a tool from the list; the user can add this one: sandpit mcp --tools default,"+namesFor(name)[0]+", or /mcp?tools=default,"+namesFor(name)[0])
	}
	return Tool{}, sandpit.WithHint(sandpit.Errorf(sandpit.NotFound, "unknown tool %.100q", name), "use a tool from the list")
}

// Invoke calls a tool with a JSON object as its input. Errors, including panics, are in the Result;
// the session remains usable. It may be nil for a tool that needs no sandbox.
func (r *Registry) Invoke(ctx context.Context, s *Session, name string, input []byte) Result {
	begun := time.Now()
	if t, known := r.names[name]; known {
		name = t.Name // files and reports use the tool's name, not an alias
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
			err = sandpit.Errorf(sandpit.Internal, "tool %s encountered a problem: panic: %v", t.Name, cause)
		}
	}()
	if len(input) > maxInput {
		return Result{}, sandpit.Errorf(sandpit.Invalid, "the input exceeds %d bytes", maxInput)
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
		err = sandpit.Errorf(sandpit.Timeout, "tool %s timed out and was stopped: %w", t.Name, err)
	}
	return result, err
}

// WithCommandTimeout returns a registry of the same tools with a timeout for commands whose input has
// none. Zero keeps each tool's default.
func (r *Registry) WithCommandTimeout(limit time.Duration) *Registry {
	limited := *r
	limited.commandTimeout = limit
	return &limited
}

// defaultCommandTimeout returns the timeout of a tool's command whose input has none.
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

// requestedTime returns the timeout or waiting time in the input.
func requestedTime(input []byte) time.Duration {
	var in struct {
		Timeout float64 `json:"timeout"`
		Seconds float64 `json:"seconds"`
	}
	if json.Unmarshal(input, &in) != nil {
		return 0 // not numbers: no timeout
	}
	return time.Duration(max(in.Timeout, in.Seconds, 0) * float64(time.Second))
}
