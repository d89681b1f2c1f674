package agent

import (
	"slices"

	"github.com/sandpit-dev/sandpit/agent/model"
)

// conversation is the messages of an agent, oldest first. The first is the user's first task.
type conversation struct {
	messages []model.Message
	// note stands for the messages that were left out after the first one.
	note string
	// answers are the responses of the current task, for checkStuck.
	answers []answered
	// ratio is the number of tokens that the vendor counted for each that was estimated. 0: unknown.
	ratio float64
	// stop is why the last response ended.
	stop model.StopReason
}

func (c *conversation) add(m model.Message) { c.messages = append(c.messages, m) }

// forgetAnswers begins a new task.
func (c *conversation) forgetAnswers() { c.answers = nil }

// callIDs returns the IDs of all calls, as plainID returns them.
func (c *conversation) callIDs() map[string]bool {
	ids := map[string]bool{}
	for _, m := range c.messages {
		for _, call := range m.Calls {
			ids[plainID(call.ID)] = true
		}
	}
	return ids
}

// toRequest returns the messages for the model, with the note after the first task.
func (c *conversation) toRequest() []model.Message {
	messages := slices.Clone(c.messages)
	if c.note != "" {
		messages[0].Text += "\n\n" + c.note
	}
	return messages
}

// openCalls returns the calls of the last response that have no result.
func (c *conversation) openCalls() []model.ToolCall {
	answered := map[string]bool{}
	for _, m := range slices.Backward(c.messages) {
		switch m.Role {
		case model.RoleTool:
			answered[m.CallID] = true
		case model.RoleAssistant:
			return slices.DeleteFunc(slices.Clone(m.Calls), func(call model.ToolCall) bool { return answered[call.ID] })
		default:
			return nil
		}
	}
	return nil
}

// terminated returns the outcome of a call of terminate in the last response that was carried out.
func (c *conversation) terminated() (Outcome, bool) {
	done := map[string]bool{}
	for _, m := range slices.Backward(c.messages) {
		if m.Role == model.RoleTool {
			done[m.CallID] = !m.Failed
			continue
		}
		for _, call := range m.Calls {
			if call.Name == toolTerminate && done[call.ID] {
				return terminated(call), true
			}
		}
		break
	}
	return Outcome{}, false
}

// sortResults puts the results of the last response into the order of its calls.
func (c *conversation) sortResults() {
	i := len(c.messages)
	for i > 0 && c.messages[i-1].Role == model.RoleTool {
		i--
	}
	if i == 0 || i == len(c.messages) {
		return
	}
	order := map[string]int{}
	for n, call := range c.messages[i-1].Calls {
		order[call.ID] = n
	}
	slices.SortStableFunc(c.messages[i:], func(a, b model.Message) int { return order[a.CallID] - order[b.CallID] })
}

// addMessage records a message and adds it to the conversation. A task is marked in the transcript.
func (a *Agent) addMessage(m model.Message, task bool) error {
	if err := a.recorder.write(entry{Type: entryMessage, Message: &m, Task: task}); err != nil {
		return err
	}
	a.conversation.add(m)
	return nil
}

// recordResponse records a response and adds it to the conversation, before its calls are carried out.
func (a *Agent) recordResponse(m model.Message, u model.Usage, stop model.StopReason) error {
	e := entry{Type: entryMessage, Message: &m, Usage: &u}
	if stop != usualStop(m) {
		e.Stop = stop
	}
	if err := a.recorder.write(e); err != nil {
		return err
	}
	a.conversation.add(m)
	a.conversation.stop = stop
	return nil
}

// answerOpenCalls adds results for calls that an interruption left without one.
func (a *Agent) answerOpenCalls() error {
	err := a.refuseCalls(a.conversation.openCalls(), textInterrupted)
	a.conversation.sortResults()
	return err
}
