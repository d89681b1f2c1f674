package agent

import (
	"fmt"
	"strings"

	"github.com/sandpit-dev/sandpit/agent/model"
)

const (
	// duplicateThreshold is how many equal answers before the last one change the prompt.
	duplicateThreshold = 2
	// stuckThreshold is how many equal answers with equal results in a row, before the last one, end
	// the task.
	stuckThreshold = 6
)

// answered is a response of the current task, for comparison.
type answered struct{ answer, results string }

// checkStuck changes the prompt if the last response repeats earlier ones, and ends the task if that
// does not help.
func (a *Agent) checkStuck() (Outcome, error) {
	c := &a.conversation
	last := lastAnswer(c.messages)
	equal, inRow := 0, 0
	for _, earlier := range c.answers {
		inRow++
		if earlier != last {
			inRow = 0
		}
		if earlier.answer == last.answer {
			equal++
		}
	}
	c.answers = append(c.answers, last)
	switch {
	case inRow >= stuckThreshold:
		return Outcome{Reason: Stuck, Text: fmt.Sprintf("Terminated: the model is stuck: %d equal responses in a row", inRow+1)}, nil
	case equal >= duplicateThreshold:
		return Outcome{}, a.addMessage(model.Message{Role: model.RoleUser, Text: promptStuck}, false)
	}
	return Outcome{}, nil
}

// lastAnswer returns the last response of the model with its results, without IDs.
func lastAnswer(messages []model.Message) (last answered) {
	var answer, results strings.Builder
	i := len(messages) - 1
	for ; i > 0 && messages[i].Role == model.RoleTool; i-- {
		fmt.Fprintf(&results, "%q\n", messages[i].Text)
	}
	if i < 0 {
		return answered{}
	}
	fmt.Fprintf(&answer, "%q\n", strings.TrimSpace(messages[i].Text))
	for _, call := range messages[i].Calls {
		fmt.Fprintf(&answer, "%s %q\n", call.Name, call.Arguments)
	}
	return answered{answer.String(), results.String()}
}
