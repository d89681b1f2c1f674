package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// mostParallel limits the calls that run at the same time.
const mostParallel = 8

// carryOut carries out the calls of a response, and adds their results in the order of the calls.
// Calls that only read run at the same time as their neighbours; the others run one after the other,
// because a model expects the effects of the first when the second runs.
func (a *Agent) carryOut(ctx context.Context, calls []model.ToolCall) (Outcome, error) {
	for len(calls) > 0 {
		if ctx.Err() != nil {
			return Outcome{}, errors.Join(context.Cause(ctx), a.refuseCalls(calls, "not carried out: interrupted"))
		}
		n := a.countParallel(calls)
		results := make([]done, n)
		var wg sync.WaitGroup
		for i, c := range calls[:n] {
			wg.Go(func() { results[i] = a.carryOutSafely(ctx, c) })
		}
		wg.Wait()
		if err := a.addResults(results); err != nil {
			return Outcome{}, errors.Join(err, a.refuseCalls(calls[n:], "not carried out: an earlier call failed"))
		}
		last := results[n-1]
		calls = calls[n:]
		if last.outcome.Reason != "" {
			return last.outcome, a.refuseCalls(calls, "not carried out: the task has ended")
		}
	}
	return Outcome{}, nil
}

// done is a call that was carried out.
type done struct {
	message model.Message
	outcome Outcome // of terminate
	// err ends the task.
	err error
}

func (a *Agent) addResults(results []done) error {
	var errs []error
	for _, r := range results {
		a.conversation.add(r.message)
		errs = append(errs, r.err)
	}
	return errors.Join(errs...)
}

// countParallel returns how many of the first calls run at the same time.
func (a *Agent) countParallel(calls []model.ToolCall) int {
	n := 0
	for n < min(len(calls), mostParallel) {
		t, err := a.tools.registry.Tool(calls[n].Name)
		if err == nil && !t.Hints.ReadOnly {
			break
		}
		n++
	}
	return max(n, 1)
}

// carryOutSafely carries out a call. A panic, of a function of Options, ends the task.
func (a *Agent) carryOutSafely(ctx context.Context, c model.ToolCall) (d done) {
	defer func() {
		if cause := recover(); cause != nil {
			d.err = errPanic(cause)
			d.message = model.Message{Role: model.RoleTool, CallID: c.ID, Text: "ERROR: " + d.err.Error(), Failed: true}
			d.err = errors.Join(d.err, a.recorder.write(entry{Type: entryMessage, Message: &d.message}))
		}
	}()
	return a.carryOutOne(ctx, c)
}

// errPanic returns the error of a panic.
func errPanic(cause any) error {
	return sandpit.Errorf(sandpit.Internal, "the agent encountered a problem: panic: %v", cause)
}

// carryOutOne carries out a call and records its result.
func (a *Agent) carryOutOne(ctx context.Context, c model.ToolCall) (d done) {
	begun := time.Now()
	a.emit(Event{Kind: EventCall, Call: &c, CallID: c.ID, Tool: c.Name})
	result, session, err := a.invoke(ctx, c)
	if ctx.Err() != nil {
		result, err = noteInterruption(result, err)
	}
	if err != nil {
		result = failedResult(err)
		if open := (errOpen{}); errors.As(err, &open) {
			d.err = open.error
		}
	}
	if session != nil {
		result.Text = a.place.takeNote() + result.Text
	}
	d.message = a.observe(ctx, session, c, result)
	if c.Name == toolTerminate && !result.Failed {
		d.outcome = terminated(c)
	}
	if err := a.recorder.write(entry{Type: entryMessage, Message: &d.message}); err != nil {
		d.err = errors.Join(d.err, err)
	}
	e := Event{
		Kind: EventResult, CallID: c.ID, Tool: c.Name, Text: d.message.Text, Failed: d.message.Failed, Took: time.Since(begun),
		Input: len(c.Arguments), Output: len(result.Text),
	}
	if result.Problem != nil {
		e.Code = result.Problem.Code
	}
	a.emit(e)
	return d
}

// textInterrupted is the result of a call of which only the beginning is known.
const textInterrupted = "interrupted: it is unknown whether the call took effect; check before you repeat it"

// noteInterruption returns the result or error of a call during which the task was interrupted. A problem of the call,
// such as a lost connection, is then caused by that, and a model that continues the task must not take it for a failure.
func noteInterruption(r tool.Result, err error) (tool.Result, error) {
	switch {
	case err != nil:
		return r, fmt.Errorf("not carried out: interrupted: %w", err)
	case r.Problem != nil:
		return r, sandpit.Errorf(sandpit.Canceled, "%s (%s)", textInterrupted, r.Problem.Message)
	}
	return r, nil // it ended before
}

// invoke calls a tool, in the sandbox if it needs one. After the end of the sandbox, the next call
// gets a new one.
func (a *Agent) invoke(ctx context.Context, c model.ToolCall) (tool.Result, *tool.Session, error) {
	t, err := a.tools.registry.Tool(c.Name)
	if err != nil {
		return tool.Result{}, nil, err
	}
	arguments := []byte(c.Arguments)
	if err := checkArguments(c, arguments); err != nil {
		return tool.Result{}, nil, err
	}
	var session *tool.Session
	if t.NeedsSandbox() {
		if session, err = a.place.enter(ctx); err != nil {
			return tool.Result{}, nil, err
		}
	}
	result := a.tools.registry.Invoke(ctx, session, t.Name, arguments)
	if session != nil && result.Problem != nil && result.Problem.Code == sandpit.Gone && ctx.Err() == nil && session.Ended(ctx) {
		err := a.place.drop(ctx, session)
		if code := sandpit.CodeOf(err); err != nil && code != sandpit.Gone && code != sandpit.NotFound {
			a.notify("release the sandbox that has ended: " + err.Error())
		}
		return failedResult(lostError(errors.New(result.Problem.Message))), nil, nil
	}
	return result, session, nil
}

// checkArguments returns an Invalid error unless the arguments are a JSON object or empty.
func checkArguments(c model.ToolCall, arguments []byte) error {
	var fields map[string]json.RawMessage
	if len(arguments) == 0 {
		return nil
	}
	if err := json.Unmarshal(arguments, &fields); err != nil {
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "parse the arguments of %s: invalid JSON: %w", c.Name, err), "send one JSON object that the schema allows")
	}
	return nil
}

// failedResult returns the result of a call that was not carried out.
func failedResult(err error) tool.Result {
	r := tool.Result{Failed: true, Problem: &tool.Problem{Code: sandpit.CodeOf(err), Message: err.Error(), Hint: sandpit.HintOf(err)}}
	r.Text = "ERROR: " + r.Problem.Message
	if r.Problem.Hint != "" {
		r.Text += " (" + r.Problem.Hint + ")"
	}
	return r
}

// terminated returns the outcome that a call of terminate asks for.
func terminated(c model.ToolCall) Outcome {
	var in struct{ Status, Message string }
	_ = json.Unmarshal([]byte(c.Arguments), &in) // the tool has checked it
	if in.Status == "success" {
		return Outcome{Reason: Finished, Text: in.Message}
	}
	return Outcome{Reason: Failed, Text: in.Message}
}

// refuseCalls adds results for calls that are not carried out, since every call needs one.
func (a *Agent) refuseCalls(calls []model.ToolCall, why string) error {
	for _, c := range calls {
		m := model.Message{Role: model.RoleTool, CallID: c.ID, Text: "ERROR: " + why, Failed: true}
		if err := a.addMessage(m, false); err != nil {
			return err
		}
	}
	return nil
}
