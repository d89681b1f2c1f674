package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/provider/fake"
)

// turn is one response of a testModel, which may look at the request.
type turn func(ctx context.Context, r model.Request, onDelta func(model.Delta)) (model.Response, error)

// testModel answers with its turns; the last one repeats.
type testModel struct {
	turns  []turn
	window int

	mu       sync.Mutex
	requests []model.Request
}

func (m *testModel) Name() string { return "test" }
func (m *testModel) Window() int  { return m.window }

func (m *testModel) Generate(ctx context.Context, r model.Request, onDelta func(model.Delta)) (model.Response, error) {
	m.mu.Lock()
	m.requests = append(m.requests, r)
	n := min(len(m.requests), len(m.turns))
	m.mu.Unlock()
	return m.turns[n-1](ctx, r, onDelta)
}

// text is a turn without calls.
func text(s string) turn {
	return func(context.Context, model.Request, func(model.Delta)) (model.Response, error) {
		return model.Response{Message: model.Message{Role: model.RoleAssistant, Text: s}, Stop: model.StopEnd, Usage: model.Usage{Input: 100, Output: 10}}, nil
	}
}

// calls is a turn with calls, each a name, a space and arguments.
func calls(list ...string) turn {
	return func(context.Context, model.Request, func(model.Delta)) (model.Response, error) {
		m := model.Message{Role: model.RoleAssistant}
		for i, c := range list {
			name, arguments, _ := strings.Cut(c, " ")
			m.Calls = append(m.Calls, model.ToolCall{ID: fmt.Sprintf("id%d", i), Name: name, Arguments: arguments})
		}
		return model.Response{Message: m, Stop: model.StopTools, Usage: model.Usage{Input: 100, Output: 10}}, nil
	}
}

// end is a turn that ends the task.
func end(status, message string) turn {
	return calls(fmt.Sprintf(`terminate {"status":%q,"message":%q}`, status, message))
}

// fails is a turn with an error.
func fails(err error) turn {
	return func(context.Context, model.Request, func(model.Delta)) (model.Response, error) {
		return model.Response{}, err
	}
}

// kit is an agent with its events and transcript.
type kit struct {
	*agent.Agent

	t *testing.T

	model      *testModel
	transcript bytes.Buffer
	events     []agent.Event
	world      *fake.World
	opened     int
	closed     int
}

// newKit returns an agent without a sandbox, which may be changed by f.
func newKit(t *testing.T, turns []turn, f func(*agent.Options)) *kit {
	t.Helper()
	k := &kit{t: t, model: &testModel{turns: turns}}
	o := agent.Options{
		Model: k.model, Transcript: &k.transcript, OnEvent: func(e agent.Event) { k.events = append(k.events, e) },
		Open: func(context.Context) (agent.Sandbox, error) {
			return agent.Sandbox{}, sandpit.Errorf(sandpit.Unsupported, "this test has no sandbox")
		},
	}
	if f != nil {
		f(&o)
	}
	var err error
	if k.Agent, err = agent.New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := k.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	return k
}

// withFake gives the agent sandboxes of the provider without isolation.
func (k *kit) withFake(t *testing.T) func(*agent.Options) {
	t.Helper()
	w := fake.NewWorld(t.TempDir())
	p := w.NewProvider()
	k.world = w
	t.Cleanup(func() {
		if err := errors.Join(p.Close(), w.Close()); err != nil {
			t.Error(err)
		}
	})
	return func(o *agent.Options) {
		o.Open = func(ctx context.Context) (agent.Sandbox, error) {
			box, err := p.Create(ctx, sandpit.NewID(), sandpit.Spec{})
			if err != nil {
				return agent.Sandbox{}, err
			}
			k.opened++
			return agent.Sandbox{ID: box.ID(), Guest: box.Guest(), Close: func(ctx context.Context) error {
				k.closed++
				return box.Destroy(ctx)
			}}, nil
		}
	}
}

// want runs a task and checks its end.
func (k *kit) want(task string, reason agent.Reason, state agent.State) agent.Outcome {
	k.t.Helper()
	o, err := k.Run(k.t.Context(), task)
	if (err != nil) != (reason == agent.Error) {
		k.t.Fatalf("error %v", err)
	}
	if o.Reason != reason || k.State() != state {
		k.t.Fatalf("%+v in state %s, want %s in %s", o, k.State(), reason, state)
	}
	return o
}

// results returns the texts of all results in the last request and in the transcript after it.
func (k *kit) results() (texts []string) {
	k.t.Helper()
	for _, m := range k.read().Messages() {
		if m.Role == model.RoleTool {
			texts = append(texts, m.Text)
		}
	}
	return texts
}

// read reads the transcript.
func (k *kit) read() *agent.Transcript {
	k.t.Helper()
	t, err := agent.ReadTranscript(bytes.NewReader(k.transcript.Bytes()))
	if err != nil {
		k.t.Fatal(err)
	}
	return t
}

func (k *kit) count(kind agent.EventKind) (n int) {
	for _, e := range k.events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// echo is a tool that returns its text.
func echo(name string, f func(text string) (string, error)) agent.Tool {
	return agent.Tool{
		Name: name, Description: "a test", Schema: json.RawMessage(`{"type":"object","properties":{"text":{"type":"string"}},"additionalProperties":false}`),
		Call: func(_ context.Context, arguments json.RawMessage) (string, error) {
			var in struct{ Text string }
			if err := json.Unmarshal(arguments, &in); err != nil {
				return "", err
			}
			return f(in.Text)
		},
	}
}

func same(text string) (string, error) { return text, nil }
