package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/sandpit-dev/sandpit/agent/model"
)

// Run works on a task until it ends. An empty task continues the last one, which the model has not ended.
//
// The error is that of the outcome Error: of the model, of opening the sandbox, or of writing the
// transcript. Invalid: there is no task to do or to continue. Conflict: the agent runs already. Gone: it was closed. After
// these three the outcome is empty.
func (a *Agent) Run(ctx context.Context, task string) (Outcome, error) {
	if err := a.begin(task); err != nil {
		return Outcome{}, err
	}
	o, err := a.runTask(ctx, task)
	return a.finish(o, err)
}

// runTask runs the loop. It converts panics to errors, and the end of ctx to an outcome.
func (a *Agent) runTask(ctx context.Context, task string) (o Outcome, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = errPanic(cause)
		}
		if err != nil && ctx.Err() != nil && !errors.Is(err, errTranscript) {
			o = Outcome{Reason: Interrupted, Text: "Interrupted: " + context.Cause(ctx).Error()}
		}
	}()
	if o, err = a.startTask(task); err != nil || o.Reason != "" {
		return o, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return o, err
		}
		if o := a.limitReached(); o.Reason != "" {
			return o, nil
		}
		a.step.Add(1)
		a.emit(Event{Kind: EventStep})
		if err := a.refreshTools(ctx); err != nil {
			return o, err
		}
		o, err = a.takeStep(ctx)
		if err != nil || o.Reason != "" {
			return o, err
		}
	}
}

// startTask adds the task to the conversation, or continues the last one. The outcome is empty unless the
// last task had ended, before that was recorded.
func (a *Agent) startTask(task string) (Outcome, error) {
	if !a.begun {
		a.begun = true
		if err := a.recorder.write(entry{Type: entryStart, Version: transcriptVersion, Model: a.o.Model.Name()}); err != nil {
			return Outcome{}, err
		}
	}
	if err := a.answerOpenCalls(); err != nil {
		return Outcome{}, err
	}
	if strings.TrimSpace(task) == "" {
		return a.continueTask()
	}
	a.step.Store(0)
	a.conversation.forgetAnswers()
	return Outcome{}, a.addMessage(model.Message{Role: model.RoleUser, Text: strings.ToValidUTF8(task, "?")}, true)
}

// continueTask takes up the last task where it was interrupted.
func (a *Agent) continueTask() (Outcome, error) {
	if o, ended := a.conversation.terminated(); ended {
		return o, nil
	}
	if int(a.step.Load()) >= a.o.MaxSteps { // the caller wants more steps
		a.step.Store(0)
	}
	last := a.conversation.messages[len(a.conversation.messages)-1]
	if last.Role != model.RoleAssistant || len(last.Calls) > 0 {
		return Outcome{}, nil
	}
	return a.takeAnswer(last, a.conversation.stop)
}

// limitReached returns the outcome of a limit, or an empty one.
func (a *Agent) limitReached() Outcome {
	if text := a.o.Budget.spentText(a.Spent()); text != "" {
		return Outcome{Reason: BudgetSpent, Text: text}
	}
	if int(a.step.Load()) >= a.o.MaxSteps {
		return Outcome{Reason: MaxSteps, Text: maxStepsText(a.o.MaxSteps)}
	}
	return Outcome{}
}

// takeStep gets one response of the model and carries out its calls. The outcome is empty unless the
// task ends.
func (a *Agent) takeStep(ctx context.Context) (Outcome, error) {
	response, err := a.think(ctx)
	if err != nil {
		return Outcome{}, err
	}
	message := a.normalize(response.Message)
	a.masks.maskCalls(message.Calls)
	usage := a.countUsage(message, response.Usage)
	if err := a.recordResponse(message, usage, response.Stop); err != nil {
		return Outcome{}, err
	}
	a.addUsage(usage)
	if len(message.Calls) == 0 {
		return a.takeAnswer(message, response.Stop)
	}
	o, err := a.takeCalls(ctx, message, response.Stop)
	if err != nil || o.Reason != "" {
		return o, err
	}
	return a.checkStuck()
}

// takeCalls carries out the calls of a response, except those that the budget, a refusal or the end of
// the response forbids.
func (a *Agent) takeCalls(ctx context.Context, message model.Message, stop model.StopReason) (Outcome, error) {
	if stop == model.StopRefusal {
		return refused(message), a.refuseCalls(message.Calls, "not carried out: the model refuses to answer")
	}
	if spent := a.o.Budget.spentText(a.Spent()); spent != "" {
		return a.endBeyondBudget(ctx, message.Calls, spent)
	}
	calls, cut := message.Calls, []model.ToolCall(nil)
	if n := len(calls) - 1; stop == model.StopLength && isCutOff(calls[n]) {
		calls, cut = calls[:n], calls[n:]
	}
	o, err := a.carryOut(ctx, calls)
	return o, errors.Join(err, a.refuseCalls(cut, "not carried out: the response was cut off at its limit within this call; make it shorter"))
}

// endBeyondBudget carries out no call of a response that exceeds the budget, except the first that ends
// the task.
func (a *Agent) endBeyondBudget(ctx context.Context, calls []model.ToolCall, spent string) (Outcome, error) {
	const why = "not carried out: the budget is spent"
	last := slices.IndexFunc(calls, func(c model.ToolCall) bool { return c.Name == toolTerminate })
	if last < 0 {
		return Outcome{Reason: BudgetSpent, Text: spent}, a.refuseCalls(calls, why)
	}
	if err := a.refuseCalls(calls[:last], why); err != nil {
		return Outcome{}, err
	}
	o, err := a.carryOut(ctx, calls[last:last+1])
	return o, errors.Join(err, a.refuseCalls(calls[last+1:], why))
}

// isCutOff reports whether a call that a response ends with may lack the end of its arguments.
func isCutOff(c model.ToolCall) bool {
	var fields map[string]json.RawMessage
	return json.Unmarshal([]byte(c.Arguments), &fields) != nil || len(fields) == 0
}

// refused returns the outcome of a refusal.
func refused(message model.Message) Outcome {
	return Outcome{Reason: Failed, Text: "the model refuses to answer: " + message.Text}
}

// takeAnswer handles a response without calls.
func (a *Agent) takeAnswer(message model.Message, stop model.StopReason) (Outcome, error) {
	switch {
	case stop == model.StopRefusal:
		return refused(message), nil
	case stop == model.StopLength:
		return Outcome{}, a.addMessage(model.Message{Role: model.RoleUser, Text: promptCutOff}, false)
	case a.o.Conversation && message.Text != emptyResponse:
		return Outcome{Reason: Finished, Text: message.Text}, nil
	}
	if o, err := a.checkStuck(); err != nil || o.Reason != "" {
		return o, err
	}
	return Outcome{}, a.addMessage(model.Message{Role: model.RoleUser, Text: promptContinue}, false)
}

// Limits of a response. What exceeds them is cut, because it would fill the conversation.
const (
	mostCalls    = 64
	maxToolName  = 64
	maxResponse  = 256 << 10 // bytes of text
	maxArguments = 1 << 20   // bytes of each call
	maxOpaque    = 4 << 20   // bytes
	// maxAllArguments bounds the arguments of all calls of a response, in bytes: a line of the transcript
	// has them.
	maxAllArguments = 4 << 20
	maxCutText      = 2_000 // bytes that stay of a text that is too long
)

// normalize returns the message of a response as the conversation needs it: bounded, valid UTF-8,
// never empty, and with calls whose IDs differ. A model may be hostile or broken.
func (a *Agent) normalize(m model.Message) model.Message {
	n := model.Message{Role: model.RoleAssistant, Text: strings.ToValidUTF8(m.Text, "?"), Opaque: m.Opaque}
	if len(n.Text) > maxResponse {
		n.Text = fmt.Sprintf("%s\n(cut off: %d bytes)", strings.ToValidUTF8(n.Text[:maxCutText], ""), len(n.Text))
	}
	if len(n.Opaque) > maxOpaque || !validJSON(n.Opaque) {
		n.Opaque = nil
	}
	taken := a.conversation.callIDs()
	size := 0
	for i, c := range m.Calls[:min(len(m.Calls), mostCalls)] {
		c.ID = strings.ToValidUTF8(c.ID, "")
		if c.ID == "" || len(c.ID) > 4*maxToolName {
			c.ID = fmt.Sprintf("call_%d_%d", len(a.conversation.messages), i)
		}
		for n := 1; taken[plainID(c.ID)]; n++ {
			c.ID = fmt.Sprintf("call_%d_%d_%d", len(a.conversation.messages), i, n)
		}
		taken[plainID(c.ID)] = true
		c.Name = toToolName(c.Name)
		if c.Arguments = strings.ToValidUTF8(c.Arguments, "\uFFFD"); len(c.Arguments) > maxArguments || size+len(c.Arguments) > maxAllArguments {
			c.Arguments = fmt.Sprintf("(cut off: %d bytes) %s", len(c.Arguments), strings.ToValidUTF8(c.Arguments[:min(maxCutText, len(c.Arguments))], ""))
		}
		size += len(c.Arguments)
		n.Calls = append(n.Calls, c)
	}
	if len(m.Calls) > mostCalls {
		a.notify(fmt.Sprintf("the model asked for %d calls at once; %d are carried out", len(m.Calls), mostCalls))
		n.Opaque = nil // it may be about the calls
	}
	if strings.TrimSpace(n.Text) == "" && len(n.Calls) == 0 {
		n.Text = emptyResponse
	}
	return n
}

// plainID returns an ID with the characters that every vendor accepts: IDs must differ in these.
func plainID(id string) string { return strings.Map(toPlain, id) }

// toPlain returns a letter, digit, - or _ unchanged, and _ for others.
func toPlain(r rune) rune {
	if r < 128 && (r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') {
		return r
	}
	return '_'
}

func isToolName(name string) bool { return name != "" && toToolName(name) == name }

// toToolName returns a name that vendors accept: letters, digits, - and _, at most 64.
func toToolName(name string) string {
	clean := strings.Map(toPlain, name)
	if clean == "" {
		return "unnamed"
	}
	return clean[:min(len(clean), maxToolName)]
}
