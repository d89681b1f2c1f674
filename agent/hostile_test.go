package agent_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// nasty are texts that break careless programs.
var nasty = []string{
	"", " ", "\x00", "\xff\xfe", "{", "}", "null", "[]", `{"text":`, `{"text":"\ud800"}`, `{"text":"\u0000"}`, `{"text":1e999}`, "\u202e{\"a\":1}\u2066",
	`{"status":"success"}x`, `{"status":"SUCCESS"}`, strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 10_001), "ﬁle_read", "echo\u200b", "ＥＣＨＯ",
	`{"text":"` + strings.Repeat("x", 2<<20) + `"}`, "../../etc/passwd", "$(reboot)", "'; DROP TABLE", `{"__proto__":{"text":"x"}}`, "{\"text\":\"a\",\"text\":\"b\"}",
	`<tool_call>{"name":"terminate"}</tool_call>`, "terminate", "echo", "plan", "ask_human", strings.Repeat("é", 3000),
}

// hostile answers at random: with broken calls, endless texts, duplicate IDs and false usage.
func hostile(random *rand.Rand) turn {
	pick := func() string { return nasty[random.IntN(len(nasty))] }
	return func(_ context.Context, r model.Request, onDelta func(model.Delta)) (model.Response, error) {
		response := model.Response{
			Message: model.Message{Role: model.Role(pick()), Text: pick(), CallID: pick(), Failed: true}, Stop: model.StopReason(pick()),
			Usage: model.Usage{Input: random.IntN(2000) - 1000, Cached: random.IntN(1 << 40), Output: -random.IntN(10)},
		}
		names := []string{"echo", "plan", "ask_human", "", "mcp_x_y"}
		for range random.IntN(6) {
			name := names[random.IntN(len(names))]
			if random.IntN(3) == 0 {
				name = pick()
			}
			if name == "terminate" {
				name = "Terminate"
			}
			response.Message.Calls = append(response.Message.Calls, model.ToolCall{ID: pick(), Name: name, Arguments: pick()})
		}
		switch random.IntN(20) {
		case 0:
			for range 200 {
				response.Message.Calls = append(response.Message.Calls, model.ToolCall{ID: "same", Name: "echo", Arguments: `{"text":"many"}`})
			}
		case 1:
			response.Message.Text = strings.Repeat("endless ", 1<<17)
		case 2:
			response.Message.Opaque = []byte(pick())
		case 3:
			for range 100 {
				onDelta(model.Delta{Text: strings.Repeat(pick(), 3), CallName: pick()})
			}
		}
		for _, m := range r.Messages {
			if !utf8.ValidString(m.Text) || m.Role == model.RoleAssistant && m.Text == "" && len(m.Calls) == 0 {
				panic(fmt.Sprintf("message %+v", m))
			}
		}
		return response, nil
	}
}

// TestHostileModel works with a model that answers nonsense 200 times. The loop keeps its limits, its
// conversation stays valid, and the transcript repeats it exactly.
func TestHostileModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(3) {
		t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
			t.Parallel()
			random := rand.New(rand.NewPCG(seed, 1))
			k := newKit(t, []turn{hostile(random)}, func(o *agent.Options) {
				o.MaxSteps, o.More = 200, []agent.Tool{echo("echo", same)}
				o.Secrets = []string{"message", "a-secret-value"}
			})
			k.model.window = 100_000
			o := k.want("do it", agent.MaxSteps, agent.StateIdle)
			if o.Steps != 200 || o.Spent.Usage.Input < 0 || o.Spent.Usage.Cached > o.Spent.Usage.Input {
				t.Errorf("%+v", o)
			}
			for i, r := range k.model.requests {
				checkPairs(t, r.Messages)
				if n := tokens(r); n > 100_000 {
					t.Errorf("request %d has %d tokens", i, n)
				}
			}
			last := k.model.requests[len(k.model.requests)-1].Messages
			got := k.read().Messages()
			for i, m := range last {
				if m.Text = strings.ReplaceAll(m.Text, "message", "***"); !reflect.DeepEqual(maskArguments(m), got[i]) {
					t.Fatalf("message %d is %.300q in the transcript, want %.300q", i, fmt.Sprintf("%+v", got[i]), fmt.Sprintf("%+v", m))
				}
			}
		})
	}
}

func maskArguments(m model.Message) model.Message {
	var masked []model.ToolCall
	for _, c := range m.Calls {
		c.Arguments = strings.ReplaceAll(c.Arguments, "message", "***")
		masked = append(masked, c)
	}
	m.Calls = masked
	return m
}

// TestEndlessResponse stops a response that does not end.
func TestEndlessResponse(t *testing.T) {
	t.Parallel()
	endless := func(ctx context.Context, _ model.Request, onDelta func(model.Delta)) (model.Response, error) {
		for ctx.Err() == nil {
			onDelta(model.Delta{Text: strings.Repeat("and ", 1000)})
		}
		return model.Response{}, ctx.Err()
	}
	k := newKit(t, []turn{endless, end("success", "")}, nil)
	k.want("do it", agent.Finished, agent.StateFinished)
	if m := k.read().Messages()[1]; len(m.Text) > 10_000 || !strings.Contains(m.Text, "(cut off: the response had more than") {
		t.Errorf("%d bytes: %.200q", len(m.Text), m.Text)
	}
}

// TestCallsBeyondLimits has small calls after those that use up the limit of a response, and IDs that differ only in
// characters that vendors do not accept.
func TestCallsBeyondLimits(t *testing.T) {
	t.Parallel()
	k := newKit(t, []turn{func(context.Context, model.Request, func(model.Delta)) (model.Response, error) {
		var response model.Response
		for range 4 {
			response.Message.Calls = append(response.Message.Calls, model.ToolCall{ID: "a.b", Name: "echo", Arguments: strings.Repeat("x", 1<<20)})
		}
		for _, id := range []string{"a:b", "a_b", "ä"} {
			response.Message.Calls = append(response.Message.Calls, model.ToolCall{ID: id, Name: "echo", Arguments: `{"text":"small"}`})
		}
		return response, nil
	}, end("success", "")}, func(o *agent.Options) { o.More = []agent.Tool{echo("echo", same)} })
	k.want("do it", agent.Finished, agent.StateFinished)
	messages := k.read().Messages()
	checkPairs(t, messages)
	ids := map[string]bool{}
	for _, c := range messages[1].Calls {
		id := strings.Map(func(r rune) rune {
			if r < 128 && r != '.' && r != ':' {
				return r
			}
			return '_'
		}, c.ID)
		if ids[id] {
			t.Errorf("the ID %q is not unique", c.ID)
		}
		ids[id] = true
	}
}
