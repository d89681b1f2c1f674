package agent

import (
	"fmt"
	"strings"

	"github.com/sandpit-dev/sandpit"
)

// State is what an agent does.
type State string

// The states.
const (
	StateIdle     State = "idle"     // it waits for a task, or for its continuation
	StateRunning  State = "running"  // it works on a task
	StateFinished State = "finished" // the model has ended the last task
	StateError    State = "error"    // the last task ended with an error
)

// Reason says why a task ended.
type Reason string

// The reasons.
const (
	// Finished: the model has done the task. Failed: it reports that it cannot. Both are the
	// state finished.
	Finished Reason = "finished"
	Failed   Reason = "failed"
	// MaxSteps, BudgetSpent, Stuck, Interrupted: the task is not done and can be continued. The
	// state is idle.
	MaxSteps    Reason = "max_steps"
	BudgetSpent Reason = "budget"
	Stuck       Reason = "stuck"
	Interrupted Reason = "interrupted"
	// Error: the model or the sandbox failed. The state is error.
	Error Reason = "error"
)

// state returns the state after a task.
func (r Reason) state() State {
	switch r {
	case Finished, Failed:
		return StateFinished
	case Error:
		return StateError
	case MaxSteps, BudgetSpent, Stuck, Interrupted:
	}
	return StateIdle
}

// Outcome is the end of a task.
type Outcome struct {
	Reason Reason `json:"reason"`
	// Text is the answer of the model, or says which limit was reached or what failed.
	Text string `json:"text,omitempty"`
	// Steps is how many responses the task took.
	Steps int `json:"steps"`
	// Spent is what all tasks of the agent took.
	Spent Spent `json:"spent"`
}

// begin changes the state to running. Conflict: the agent runs. Gone: it was closed. Invalid: there is
// no task.
func (a *Agent) begin(task string) error {
	if a.place.isClosed() {
		return sandpit.Errorf(sandpit.Gone, "the agent was closed")
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.state == StateRunning {
		return sandpit.Errorf(sandpit.Conflict, "cannot run agent from state: %s", a.state)
	}
	switch empty := strings.TrimSpace(task) == ""; {
	case empty && len(a.conversation.messages) == 0:
		return sandpit.Errorf(sandpit.Invalid, "the task is empty")
	case empty && a.ended:
		return sandpit.WithHint(sandpit.Errorf(sandpit.Invalid, "there is nothing to continue: the model has ended the task"), "state another task")
	}
	a.state = StateRunning
	return nil
}

// finish sets the state after a task and completes its outcome.
func (a *Agent) finish(o Outcome, err error) (Outcome, error) {
	if err != nil && o.Reason != Interrupted {
		o.Reason, o.Text = Error, err.Error()
	}
	o.Text = a.masks.mask(o.Text)
	o.Steps = int(a.step.Load())
	a.mu.Lock()
	o.Spent = a.spent
	a.mu.Unlock()
	if o.Reason == Interrupted {
		err = nil
	}
	if recordErr := a.recorder.write(entry{Type: entryEnd, Outcome: &o}); recordErr != nil && err == nil {
		o.Reason, o.Text, err = Error, recordErr.Error(), recordErr
	}
	a.mu.Lock()
	a.state = o.Reason.state()
	a.ended = a.state == StateFinished
	a.mu.Unlock()
	a.emit(Event{Kind: EventEnd, Step: o.Steps, Text: o.Text, Outcome: &o})
	return o, err
}

// maxStepsText is the text of the outcome MaxSteps.
func maxStepsText(n int) string { return fmt.Sprintf("Terminated: Reached max steps (%d)", n) }
