package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
	"github.com/sandpit-dev/sandpit/internal/core/textlen"
)

// agentPrinter prints what an agent does.
type agentPrinter struct {
	a        *app
	format   string
	maxSteps int
	calls    *callLog

	open bool // the last line on standard error has no end

	// stop ends the task when the events cannot be written. err is why.
	stop context.CancelCauseFunc
	err  error
}

// newAgentPrinter returns a printer. Stop ends the task with a cause.
func newAgentPrinter(a *app, format string, maxSteps int, calls *callLog, stop context.CancelCauseFunc) *agentPrinter {
	return &agentPrinter{a: a, format: format, maxSteps: maxSteps, calls: calls, stop: stop}
}

// maxShown bounds an argument or a result in a line of progress, in bytes.
const maxShown = 160

// print prints an event: as a line of JSON, or as progress for people on standard error. Texts may come
// from a sandbox.
func (p *agentPrinter) print(e agent.Event) {
	if e.Kind == agent.EventResult {
		p.calls.record(tool.Call{Tool: e.Tool, Took: e.Took, Code: e.Code, Failed: e.Failed, Input: e.Input, Output: e.Output})
	}
	if p.format == formatJSON {
		p.writeEvent(e)
		return
	}
	if text := p.toText(e); text != "" {
		if p.open {
			text = "\n" + text
		}
		p.open = false
		_, _ = fmt.Fprintln(p.a.Err, text) // the answer is on standard output
	}
}

// writeEvent writes an event. Without its reader the task would take effect and cost money in vain.
func (p *agentPrinter) writeEvent(e agent.Event) {
	if p.err != nil {
		return
	}
	line, err := json.Marshal(e)
	if err == nil {
		_, err = p.a.Out.Write(append(line, '\n'))
	}
	if err != nil {
		p.err = fmt.Errorf("write the events: %w", err)
		p.stop(p.err)
	}
}

// toText returns the line of progress for an event, or "".
func (p *agentPrinter) toText(e agent.Event) string {
	switch e.Kind {
	case agent.EventStep:
		return fmt.Sprintf("step %d/%d", e.Step, p.maxSteps)
	case agent.EventDelta:
		if e.Text != "" {
			_, _ = fmt.Fprint(p.a.Err, escapeLines(e.Text)) // as in print
			p.open = !strings.HasSuffix(e.Text, "\n")
		}
	case agent.EventCall:
		return fmt.Sprintf("  %s %s", escapeText(e.Tool), shorten(e.Call.Arguments))
	case agent.EventResult:
		state := "ok"
		if e.Failed {
			state = "failed"
		}
		return fmt.Sprintf("  %s: %s, %s: %s", escapeText(e.Tool), state, formatDuration(e.Took.Round(time.Millisecond)), shorten(e.Text))
	case agent.EventLink:
		return fmt.Sprintf("  port %d: %s", e.Link.Port, escapeText(e.Link.URL))
	case agent.EventUsage:
		text := fmt.Sprintf("  %d tokens in, %d out", e.Spent.Usage.Input, e.Spent.Usage.Output)
		if e.Spent.Cost > 0 {
			text += fmt.Sprintf(", %.4f", e.Spent.Cost)
		}
		return text
	case agent.EventNotice:
		return "  notice: " + shorten(e.Text)
	case agent.EventEnd:
		return p.endText(*e.Outcome)
	}
	return ""
}

func (p *agentPrinter) endText(o agent.Outcome) string {
	text := fmt.Sprintf("%s after %d steps, %d tokens", o.Reason, o.Steps, o.Spent.Usage.Input+o.Spent.Usage.Output)
	if o.Spent.Cost > 0 {
		text += fmt.Sprintf(", cost %.4f", o.Spent.Cost)
	}
	return text
}

// shorten returns the beginning of a text in one line.
func shorten(text string) string {
	return escapeText(textlen.Shorten(strings.Join(strings.Fields(text), " "), maxShown))
}
