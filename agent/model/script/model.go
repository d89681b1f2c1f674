package script

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// Model follows a script.
type Model struct {
	s Script

	mu       sync.Mutex
	taken    int // requests that took a turn
	requests []model.Request
	err      error // why the script has ended early
}

// answer is what one request gets.
type answer struct {
	turn  Turn
	text  string
	calls []model.ToolCall
	stop  model.StopReason
	usage model.Usage
}

// New returns a model that follows a script from its beginning.
//
// Invalid: the script.
func New(s Script) (*Model, error) {
	s.Model = cmp.Or(s.Model, "script")
	if err := s.check(); err != nil {
		return nil, err
	}
	return &Model{s: s}, nil
}

// Name implements model.Model.
func (m *Model) Name() string { return m.s.Model }

// Window implements model.Model.
func (m *Model) Window() int { return m.s.Window }

// Requests returns the requests so far.
func (m *Model) Requests() []model.Request {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.requests)
}

// Err returns why the script has ended early: an expectation that was not met, or a request after
// the last turn.
func (m *Model) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}

// Unused returns how many turns no request has taken.
func (m *Model) Unused() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	all := 0
	for _, t := range m.s.Turns {
		all += max(t.Times, 1)
	}
	return all - m.taken
}

// Generate implements model.Model. It repeats nothing: an error of the script is returned as
// clients of vendors return it after their last attempt.
func (m *Model) Generate(ctx context.Context, r model.Request, onDelta func(model.Delta)) (model.Response, error) {
	if onDelta == nil {
		onDelta = func(model.Delta) {}
	}
	a, err := m.take(r)
	if err != nil {
		return model.Response{}, err
	}
	if err := sleep(ctx, time.Duration(a.turn.Delay)); err != nil {
		return model.Response{}, err
	}
	for _, word := range words(a.text) {
		if word != "" {
			onDelta(model.Delta{Text: word})
		}
	}
	if a.turn.Error != nil {
		return model.Response{}, a.turn.Error.raise(ctx, m.s.Model)
	}
	for _, call := range a.calls {
		onDelta(model.Delta{CallName: call.Name})
	}
	return model.Response{
		Message: model.Message{Role: model.RoleAssistant, Text: a.text, Calls: a.calls}, Stop: a.stop, Usage: a.usage,
	}, nil
}

// take returns the answer to a request, and records the request.
//
// Invalid: the request is not what the turn expects, or there is no turn left.
func (m *Model) take(r model.Request) (answer, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.requests = append(m.requests, r)
	if m.err != nil {
		return answer{}, m.err
	}
	number := m.next()
	if number == 0 {
		m.err = sandpit.Errorf(sandpit.Invalid, "script of model %q: a request after the last turn (%d turns)", m.s.Model, len(m.s.Turns))
		return answer{}, m.err
	}
	turn := m.s.Turns[number-1]
	calls, err := turn.toolCalls(number)
	if err == nil {
		err = turn.Expect.check(r)
	}
	if err != nil {
		m.err = sandpit.Errorf(sandpit.Invalid, "script of model %q: turn %d: %w", m.s.Model, number, err)
		return answer{}, m.err
	}
	m.taken++
	a := answer{turn: turn, text: turn.Text, calls: calls, stop: turn.Stop}
	if a.stop == "" {
		a.stop = model.StopEnd
		if len(calls) > 0 {
			a.stop = model.StopTools
		}
	}
	a.usage = estimate(r, a)
	if u := turn.Usage; u != nil {
		a.usage = model.Usage{Input: u.Input, Cached: u.Cached, Output: u.Output}
	}
	return a, nil
}

// next returns the number of the next turn, from 1. 0: all are taken.
func (m *Model) next() int {
	before := 0
	for i, t := range m.s.Turns {
		if before += max(t.Times, 1); m.taken < before {
			return i + 1
		}
	}
	return 0
}

// estimate counts a token for four bytes.
func estimate(r model.Request, a answer) model.Usage {
	input, output := len(r.System), len(a.text)
	for _, message := range r.Messages {
		input += len(message.Text)
		for _, call := range message.Calls {
			input += len(call.Name) + len(call.Arguments)
		}
	}
	for _, tool := range r.Tools {
		input += len(tool.Name) + len(tool.Description) + len(tool.Schema)
	}
	for _, call := range a.calls {
		output += len(call.Name) + len(call.Arguments)
	}
	return model.Usage{Input: input/4 + 1, Output: output/4 + 1}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the model: %w", context.Cause(ctx))
	}
}
