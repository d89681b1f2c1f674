package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// Tool is a tool that a program adds to those of the sandbox. It runs in this program, so its
// arguments must be treated as data of a stranger.
type Tool struct {
	// Name has letters, digits, - and _, at most 64.
	Name        string
	Description string
	// Schema is the JSON schema of the arguments, an object, with which they are compared. Default:
	// any object.
	Schema json.RawMessage
	// ReadOnly calls change nothing, and run at the same time as others next to them.
	ReadOnly bool
	// Timeout bounds a call. Default: a minute.
	Timeout time.Duration
	// Call carries out a call and returns the text for the model. An error becomes a failed result.
	Call func(ctx context.Context, arguments json.RawMessage) (string, error)
}

// Names of the agent's own tools.
const (
	toolAsk       = "ask_human"
	toolTerminate = "terminate"
	toolPlan      = "plan"
)

// categoryAgent is the category of tools that are not of the sandbox.
const categoryAgent tool.Category = "agent"

// wordDefault chooses defaultTools.
const wordDefault = tool.ChooseDefault

// defaultTools returns the words for the default tools: one for each subject, and a few that save
// many calls.
func defaultTools() []string {
	return []string{
		string(tool.Compound), "sandbox_browser", "sandbox_vision", "file_read", "file_list", "glob", "grep", "git_clone", "http_request",
		"env_set", "sandbox_context", "python_exec", "pip_install", "javascript_execute",
	}
}

// CheckTools returns an Invalid error for words that Options.Tools cannot have.
func CheckTools(words []string) error { return tool.CheckChoice(words) }

// newRegistry returns the tools of the sandbox, of the agent and of the program.
func (a *Agent) newRegistry() (*tool.Registry, error) {
	words := a.o.Tools
	if len(words) == 0 {
		words = []string{wordDefault}
	}
	if i := slices.Index(words, wordDefault); i >= 0 {
		words = slices.Concat(words[:i], defaultTools(), words[i+1:])
	}
	r, err := tool.Choose(nil, words...)
	if err != nil {
		return nil, err
	}
	added := a.ownTools()
	for _, t := range a.o.More {
		if !isToolName(t.Name) || t.Call == nil {
			return nil, sandpit.Errorf(sandpit.Invalid, "tool %.100q: want a function, and a name of at most %d letters, digits, - and _", t.Name, maxToolName)
		}
		added = append(added, t.toAdded())
	}
	r, err = r.With(added...)
	if err != nil {
		return nil, err
	}
	return r.WithCommandTimeout(a.o.CommandTimeout), nil
}

func (t Tool) toAdded() tool.Added {
	return tool.Added{
		Name: t.Name, Title: t.Name, Description: t.Description, Category: categoryAgent, Hints: tool.Hints{ReadOnly: t.ReadOnly},
		Timeout: t.Timeout, Schema: t.Schema, NoSandbox: true,
		Call: func(ctx context.Context, _ *tool.Session, input json.RawMessage) (tool.Result, error) {
			text, err := t.Call(ctx, input)
			return tool.Result{Text: text}, err
		},
	}
}

// askTimeout bounds the time for a person's answer. The sandbox is kept that long: see keeper.
const askTimeout = 24 * time.Hour

// ownTools returns the tools of every agent.
func (a *Agent) ownTools() []tool.Added {
	return []tool.Added{
		{
			Name: toolAsk, Title: "Ask a person", Category: categoryAgent, NoSandbox: true, Timeout: askTimeout,
			Description: "Ask the user a question and return the answer. Use it only if the task cannot be done without it.",
			Schema:      json.RawMessage(`{"type":"object","properties":{"inquire":{"type":"string","description":"the question"}},"required":["inquire"],"additionalProperties":false}`),
			Call:        a.askHuman,
		}, {
			Name: toolTerminate, Title: "End the task", Category: categoryAgent, NoSandbox: true,
			Description: "End the task. Call it when the task is done, or when it cannot be done.",
			Schema: json.RawMessage(`{"type":"object","properties":{"status":{"type":"string","enum":["success","failure"],"description":"whether the task is done"},` +
				`"message":{"type":"string","description":"the answer or result for the user, or the reason of the failure"}},"required":["status"],"additionalProperties":false}`),
			Call: func(context.Context, *tool.Session, json.RawMessage) (tool.Result, error) {
				return tool.Result{Text: "The task has ended"}, nil
			},
		}, {
			Name: toolPlan, Title: "Plan the task", Category: categoryAgent, NoSandbox: true, Hints: tool.Hints{Idempotent: true},
			Description: "Write down the steps of a long task with their states, or change them. Each call replaces the whole list.",
			Schema: json.RawMessage(`{"type":"object","properties":{"steps":{"type":"array","maxItems":100,"items":{"type":"object","properties":{` +
				`"text":{"type":"string","description":"the step"},"state":{"type":"string","enum":["pending","in_progress","done","dropped"],"default":"pending"}},` +
				`"required":["text"],"additionalProperties":false}}},"required":["steps"],"additionalProperties":false}`),
			Call: showPlan,
		},
	}
}

func (a *Agent) askHuman(ctx context.Context, _ *tool.Session, input json.RawMessage) (tool.Result, error) {
	var in struct {
		Question string `json:"inquire"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return tool.Result{}, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	if a.o.Ask == nil {
		return tool.Result{}, sandpit.WithHint(sandpit.Errorf(sandpit.Unavailable, "no person answers questions of this task"), "decide yourself, or end the task with the status failure")
	}
	answer, err := a.o.Ask(ctx, a.masks.mask(in.Question))
	return tool.Result{Text: answer}, err
}

// planStates are the signs of the states in a list.
var planStates = map[string]string{"pending": "[ ]", "in_progress": "[>]", "done": "[x]", "dropped": "[-]"}

func showPlan(_ context.Context, _ *tool.Session, input json.RawMessage) (tool.Result, error) {
	var in struct {
		Steps []struct{ Text, State string } `json:"steps"`
	}
	if err := json.Unmarshal(input, &in); err != nil {
		return tool.Result{}, sandpit.Errorf(sandpit.Invalid, "%w", err)
	}
	var b strings.Builder
	done := 0
	for i, s := range in.Steps {
		if s.State == "" {
			s.State = "pending"
		}
		if s.State == "done" || s.State == "dropped" {
			done++
		}
		fmt.Fprintf(&b, "%d. %s %s\n", i+1, planStates[s.State], s.Text)
	}
	fmt.Fprintf(&b, "%d of %d steps are finished", done, len(in.Steps))
	return tool.Result{Text: b.String()}, nil
}

// toolSet is what the model is offered, and the registry that carries it out.
type toolSet struct {
	registry *tool.Registry
	offered  []model.Tool
	size     int // of names, descriptions and schemas, in bytes
}

// mostOffered limits the tools: vendors refuse more.
const mostOffered = 128

func newToolSet(r *tool.Registry) (toolSet, error) {
	set := toolSet{registry: r}
	for _, t := range r.Tools() {
		schema, err := t.InputSchema()
		if err != nil {
			return set, sandpit.Errorf(sandpit.Invalid, "tool %s: %w", t.Name, err)
		}
		set.offered = append(set.offered, model.Tool{Name: t.Name, Description: t.Description, Schema: schema})
		set.size += len(t.Name) + len(t.Description) + len(schema)
	}
	if len(set.offered) > mostOffered {
		return set, sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "%d tools are chosen; models accept at most %d", len(set.offered), mostOffered), "choose fewer tools")
	}
	return set, nil
}
