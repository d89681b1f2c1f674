package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// maxStream bounds the parts of a response that arrive, in bytes.
const maxStream = 4 << 20

// errEndless stops a response that does not end.
var errEndless = errors.New("the response does not end")

// think gets the next response of the model. It makes the conversation shorter if it does not fit.
func (a *Agent) think(ctx context.Context) (model.Response, error) {
	if err := a.compactBefore(); err != nil {
		return model.Response{}, err
	}
	for attempt := 0; ; attempt++ {
		response, err := a.generateWhole(ctx, a.newRequest(ctx))
		if err == nil {
			a.conversation.calibrate(a.estimate(), response.Usage.Input)
			return response, nil
		}
		if !errors.Is(err, model.ErrTooLong) || attempt == mostCompactions {
			return response, fmt.Errorf("ask the model %s: %w", a.o.Model.Name(), err)
		}
		shorter, compactErr := a.compactAfterRefusal(attempt)
		if compactErr != nil {
			return response, compactErr
		}
		if !shorter {
			return response, fmt.Errorf("ask the model %s: %w", a.o.Model.Name(), err)
		}
	}
}

// newRequest returns the request for the next response.
func (a *Agent) newRequest(ctx context.Context) model.Request {
	r := model.Request{System: a.systemText(), Messages: a.conversation.toRequest(), Tools: a.tools.offered, MaxTokens: a.o.MaxTokens}
	last := &r.Messages[len(r.Messages)-1]
	// A reminder after a text alone: the model must act, or end the task.
	r.MustCall = !a.o.Conversation && last.Role == model.RoleUser && last.Text == promptContinue
	if page := a.browserState(ctx); page != "" {
		last.Text += "\n\nThe browser now:\n" + page
	}
	return r
}

// recentTurns is for how many messages after a call the state of the browser is shown.
const recentTurns = 3

// browserState returns the open page for the next request only, if the browser was used lately
// through a tool whose results do not show the page.
func (a *Agent) browserState(ctx context.Context) string {
	recent := a.conversation.messages[max(0, len(a.conversation.messages)-recentTurns):]
	used := slices.ContainsFunc(recent, func(m model.Message) bool {
		return slices.ContainsFunc(m.Calls, func(c model.ToolCall) bool { return strings.HasPrefix(c.Name, "browser_") && c.Name != "browser_state" })
	})
	session := a.place.current()
	if !used || session == nil || a.tools.registry == nil {
		return ""
	}
	if _, err := a.tools.registry.Tool("browser_state"); err != nil {
		return ""
	}
	result := a.tools.registry.Invoke(ctx, session, "browser_state", nil)
	if result.Failed {
		return ""
	}
	return cutMiddle(a.masks.mask(result.Text), a.o.MaxObservation)
}

const (
	// mostCutOff limits how often a request is repeated whose response ended in the middle.
	mostCutOff = 2
	// cutOffWait is the wait before it is repeated. maxCutOffWait bounds what the model may ask for.
	cutOffWait    = time.Second
	maxCutOffWait = time.Minute
)

// generateWhole sends a request, and repeats it if its response ends in the middle: a model repeats only
// requests of whose response nothing has arrived.
func (a *Agent) generateWhole(ctx context.Context, r model.Request) (model.Response, error) {
	for n := 0; ; n++ {
		response, arrived, err := a.generate(ctx, r)
		wait := max(cutOffWait, sandpit.RetryAfterOf(err))
		if err == nil || !arrived || n == mostCutOff || !sandpit.Retryable(err) || ctx.Err() != nil || wait > maxCutOffWait {
			return response, err
		}
		a.notify("the response was cut off, and the model is asked again: " + err.Error())
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return response, err
		}
	}
}

// generate sends a request, with a bound on time and size of its response. It reports whether a part of
// the response has arrived.
func (a *Agent) generate(ctx context.Context, r model.Request) (response model.Response, arrived bool, err error) {
	limited, cancel := context.WithTimeoutCause(ctx, a.o.ResponseTimeout,
		sandpit.Errorf(sandpit.Timeout, "the model did not answer within %s", a.o.ResponseTimeout))
	defer cancel()
	bounded, stop := context.WithCancelCause(limited)
	defer stop(nil)
	var begun strings.Builder
	size := 0
	shown := deltaMask{masks: a.masks}
	defer func() {
		if rest := shown.rest(); rest != "" {
			a.emit(Event{Kind: EventDelta, Text: rest})
		}
	}()
	response, err = a.o.Model.Generate(bounded, r, func(d model.Delta) {
		if size += len(d.Text) + len(d.CallName); size > maxStream {
			stop(errEndless)
			return
		}
		if begun.Len() < maxCutText {
			begun.WriteString(d.Text)
		}
		if text := shown.add(d.Text); text != "" || d.CallName != "" {
			a.emit(Event{Kind: EventDelta, Text: text, Tool: d.CallName})
		}
	})
	switch cause := context.Cause(bounded); {
	case err == nil || ctx.Err() != nil:
		return response, size > 0, err
	case errors.Is(cause, errEndless):
		text := fmt.Sprintf("%s\n(cut off: the response had more than %d bytes)", strings.ToValidUTF8(begun.String(), ""), maxStream)
		return model.Response{Message: model.Message{Text: text}, Stop: model.StopLength}, true, nil
	case limited.Err() != nil:
		return response, false, fmt.Errorf("%w: %w", cause, err)
	}
	return response, size > 0, err
}

func validJSON(raw json.RawMessage) bool { return len(raw) == 0 || json.Valid(raw) }
