package agent

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// Run works on a task until it ends. An empty task continues an interrupted one.
//
// The error is that of the outcome Error: of the model, of opening the sandbox, or of writing the
// transcript. Invalid: there is no task. Conflict: the agent runs already. Gone: it was closed. After
// these three the outcome is empty.
func (a *Agent) Run(ctx context.Context, task string) (Outcome, error) {
	if strings.TrimSpace(task) == "" && len(a.conversation.messages) == 0 {
		return Outcome{}, sandpit.Errorf(sandpit.Invalid, "the task is empty")
	}
	if err := a.begin(); err != nil {
		return Outcome{}, err
	}
	o, err := a.runTask(ctx, task)
	return a.finish(o, err)
}

// runTask runs the loop. It converts panics to errors, and the end of ctx to an outcome.
func (a *Agent) runTask(ctx context.Context, task string) (o Outcome, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = sandpit.Errorf(sandpit.Internal, "the agent encountered a problem: panic: %v", cause)
		}
		if err != nil && ctx.Err() != nil && !errors.Is(err, errTranscript) {
			o = Outcome{Reason: Interrupted, Text: "Interrupted: " + context.Cause(ctx).Error()}
		}
	}()
	if err := a.startTask(task); err != nil {
		return o, err
	}
	for {
		if err := ctx.Err(); err != nil {
			return o, err
		}
		if o := a.limitReached(); o.Reason != "" {
			return o, nil
		}
		a.step++
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

// startTask adds the task to the conversation.
func (a *Agent) startTask(task string) error {
	if !a.begun {
		a.begun = true
		if err := a.recorder.write(entry{Type: entryStart, Version: transcriptVersion, Model: a.o.Model.Name()}); err != nil {
			return err
		}
	}
	if err := a.answerOpenCalls(); err != nil {
		return err
	}
	if strings.TrimSpace(task) == "" {
		if a.step >= a.o.MaxSteps { // the caller wants more steps
			a.step = 0
		}
		return nil
	}
	a.step = 0
	a.conversation.forgetAnswers()
	return a.addMessage(model.Message{Role: model.RoleUser, Text: strings.ToValidUTF8(task, "?")}, true)
}

// limitReached returns the outcome of a limit, or an empty one.
func (a *Agent) limitReached() Outcome {
	if text := a.o.Budget.spentText(a.Spent()); text != "" {
		return Outcome{Reason: BudgetSpent, Text: text}
	}
	if a.step >= a.o.MaxSteps {
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
	if err := a.recordResponse(message, response.Usage); err != nil {
		return Outcome{}, err
	}
	a.addUsage(response.Usage)
	if len(message.Calls) == 0 {
		return a.takeAnswer(message, response.Stop)
	}
	spent := a.o.Budget.spentText(a.Spent())
	if spent != "" && !endsTask(message.Calls) {
		return Outcome{Reason: BudgetSpent, Text: spent}, a.refuseCalls(message.Calls, "not carried out: the budget is spent")
	}
	o, err := a.carryOut(ctx, message.Calls)
	if err != nil || o.Reason != "" {
		return o, err
	}
	return a.checkStuck()
}

// takeAnswer handles a response without calls.
func (a *Agent) takeAnswer(message model.Message, stop model.StopReason) (Outcome, error) {
	switch {
	case stop == model.StopRefusal:
		return Outcome{Reason: Failed, Text: "the model refuses to answer: " + message.Text}, nil
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
	maxCutText   = 2_000     // bytes that stay of a text that is too long
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
	for i, c := range m.Calls[:min(len(m.Calls), mostCalls)] {
		c.ID = strings.ToValidUTF8(c.ID, "")
		if c.ID == "" || len(c.ID) > 4*maxToolName || taken[c.ID] {
			c.ID = fmt.Sprintf("call_%d_%d", len(a.conversation.messages), i)
		}
		taken[c.ID] = true
		c.Name = toToolName(c.Name)
		if c.Arguments = strings.ToValidUTF8(c.Arguments, "\uFFFD"); len(c.Arguments) > maxArguments {
			c.Arguments = fmt.Sprintf("(cut off: %d bytes) %s", len(c.Arguments), strings.ToValidUTF8(c.Arguments[:maxCutText], ""))
		}
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

func isToolName(name string) bool { return name != "" && toToolName(name) == name }

// toToolName returns a name that vendors accept: letters, digits, - and _, at most 64.
func toToolName(name string) string {
	clean := strings.Map(func(r rune) rune {
		if r < 128 && (r == '-' || r == '_' || '0' <= r && r <= '9' || 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z') {
			return r
		}
		return '_'
	}, name)
	if clean == "" {
		return "unnamed"
	}
	return clean[:min(len(clean), maxToolName)]
}
