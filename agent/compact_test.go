package agent_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// tokens counts as a strict vendor does.
func tokens(r model.Request) int {
	n := len(r.System) / 4
	for _, tool := range r.Tools {
		n += (len(tool.Name) + len(tool.Description) + len(tool.Schema)) / 4
	}
	for _, m := range r.Messages {
		n += len(m.Text)/4 + 4 + 1500*len(m.Images)
		for _, c := range m.Calls {
			n += len(c.Arguments)/4 + 8
		}
	}
	return n
}

// TestCompaction works on with long results in a small window: whether the model states the window, or
// only refuses what is too long.
func TestCompaction(t *testing.T) {
	t.Parallel()
	for name, stated := range map[string]int{"stated": 24_000, "unstated": 0} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const window = 24_000
			refused, n := 0, 0
			strict := func(ctx context.Context, r model.Request, d func(model.Delta)) (model.Response, error) {
				checkPairs(t, r.Messages)
				used := tokens(r)
				if used > window {
					refused++
					return model.Response{}, fmt.Errorf("%d tokens: %w", used, model.ErrTooLong)
				}
				n++
				if n == 60 {
					return end("success", "")(ctx, r, d)
				}
				response, err := calls(fmt.Sprintf(`big {"text":"%d a"}`, n), fmt.Sprintf(`big {"text":"%d b"}`, n))(ctx, r, d)
				response.Usage.Input = used
				return response, err
			}
			k := newKit(t, []turn{strict}, func(o *agent.Options) {
				o.MaxSteps = 100
				o.More = []agent.Tool{echo("big", func(text string) (string, error) { return text + strings.Repeat(" word", 1800), nil })}
			})
			k.model.window = stated
			k.want("the first task", agent.Finished, agent.StateFinished)
			if stated > 0 && refused > 0 {
				t.Errorf("the model refused %d requests although it states its window", refused)
			}
			last := k.model.requests[len(k.model.requests)-1]
			if first := last.Messages[0].Text; !strings.HasPrefix(first, "the first task\n\n[Earlier turns were left out") || !strings.Contains(first, `call big {"text":"`) {
				t.Errorf("the first message: %.300q", first)
			}
			if recent := last.Messages[len(last.Messages)-1].Text; !strings.HasPrefix(recent, "59 b") {
				t.Errorf("the last result: %.100q", recent)
			}
			// The transcript has the same conversation.
			got := k.read().Messages()
			if !reflect.DeepEqual(got[:len(last.Messages)], last.Messages) {
				t.Errorf("%d messages in the transcript differ from the %d of the last request", len(got), len(last.Messages))
			}
		})
	}
}

// TestCompactionFails ends the task when nothing more can be left out.
func TestCompactionFails(t *testing.T) {
	t.Parallel()
	k := newKit(t, []turn{fails(fmt.Errorf("no: %w", model.ErrTooLong))}, nil)
	if o := k.want("do it", agent.Error, agent.StateError); !strings.Contains(o.Text, "too long for the model") {
		t.Errorf("%+v", o)
	}
	if len(k.model.requests) > 6 {
		t.Errorf("%d requests", len(k.model.requests))
	}
}
