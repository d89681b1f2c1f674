package agent

import (
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// EventKind is the kind of an event.
type EventKind string

// The kinds, with the fields that are set besides Step.
const (
	EventStep   EventKind = "step"   // a request to the model begins
	EventDelta  EventKind = "delta"  // Text, or Tool for the begin of a call: a part of its response
	EventCall   EventKind = "call"   // Call: a call of a tool begins
	EventResult EventKind = "result" // Tool, CallID, Text, Failed, Code, Took, Input, Output: it ended
	EventLink   EventKind = "link"   // Link: a port of the sandbox can be opened
	EventUsage  EventKind = "usage"  // Usage of the response, Spent: of all responses
	EventNotice EventKind = "notice" // Text: something for a person to know, such as a server that failed, or that the response begins again
	EventEnd    EventKind = "end"    // Text, Outcome: the task ended
)

// Event is something that an agent does. Secrets are masked in its texts; the URL of a link lets its
// bearer open the port.
type Event struct {
	Kind   EventKind       `json:"event"`
	Step   int             `json:"step,omitempty"`
	Text   string          `json:"text,omitempty"`
	Call   *model.ToolCall `json:"call,omitempty"`
	CallID string          `json:"call_id,omitempty"`
	Tool   string          `json:"tool,omitempty"`
	Failed bool            `json:"failed,omitempty"`
	// Code is the error of a call that was not carried out.
	Code sandpit.Code `json:"code,omitempty"`
	// Took is the duration of a call.
	Took time.Duration `json:"took_ns,omitempty"`
	// Input and Output are the sizes of a call in bytes.
	Input   int          `json:"input_bytes,omitempty"`
	Output  int          `json:"output_bytes,omitempty"`
	Link    *Link        `json:"link,omitempty"`
	Usage   *model.Usage `json:"usage,omitempty"`
	Spent   *Spent       `json:"spent,omitempty"`
	Outcome *Outcome     `json:"outcome,omitempty"`
}

// Link is a port of the sandbox that a browser can open.
type Link struct {
	// URL opens the port. It may have a ticket for one browser, which neither the model nor the
	// transcript gets.
	URL  string `json:"url"`
	Port int    `json:"port"`
	// ExpiresAt is when the URL expires. Zero: never.
	ExpiresAt time.Time `json:"expires_at,omitzero"`
}

// emit passes an event to the caller.
func (a *Agent) emit(e Event) {
	if a.o.OnEvent == nil {
		return
	}
	e.Text = a.masks.mask(e.Text)
	if e.Call != nil {
		call := *e.Call
		call.Arguments = a.masks.mask(call.Arguments)
		e.Call = &call
	}
	a.events.Lock()
	defer a.events.Unlock()
	if e.Step == 0 {
		e.Step = int(a.step.Load())
	}
	a.o.OnEvent(e)
}

// notify reports something to a person.
func (a *Agent) notify(text string) { a.emit(Event{Kind: EventNotice, Text: text}) }

// emitLink reports a link, and records it without its ticket. It returns the recorded URL.
func (a *Agent) emitLink(l Link) string {
	a.mu.Lock()
	if a.links == nil {
		a.links = map[int]Link{}
	}
	a.links[l.Port] = l
	a.mu.Unlock()
	a.emit(Event{Kind: EventLink, Link: &l})
	public := l
	public.URL = withoutTicket(l.URL)
	if err := a.recorder.write(entry{Type: entryLink, Link: &public}); err != nil {
		a.notify("the link is not in the transcript: " + err.Error())
	}
	return public.URL
}
