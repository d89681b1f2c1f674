package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// TestStates has each way of ending a task, with the state after it.
func TestStates(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		turns  []turn
		set    func(*agent.Options)
		reason agent.Reason
		state  agent.State
		text   string
	}{
		"finished":     {turns: []turn{end("success", "done")}, reason: agent.Finished, state: agent.StateFinished, text: "done"},
		"failed":       {turns: []turn{end("failure", "cannot")}, reason: agent.Failed, state: agent.StateFinished, text: "cannot"},
		"bad status":   {turns: []turn{end("maybe", "x"), end("success", "y")}, reason: agent.Finished, state: agent.StateFinished, text: "y"},
		"conversation": {turns: []turn{text("hello")}, set: func(o *agent.Options) { o.Conversation = true }, reason: agent.Finished, state: agent.StateFinished, text: "hello"},
		"steps": {
			turns: []turn{count()}, set: func(o *agent.Options) { o.More = []agent.Tool{echo("echo", same)} },
			reason: agent.MaxSteps, state: agent.StateIdle, text: "Terminated: Reached max steps (20)",
		},
		"few steps": {
			turns: []turn{count()}, set: func(o *agent.Options) { o.More, o.MaxSteps = []agent.Tool{echo("echo", same)}, 3 },
			reason: agent.MaxSteps, state: agent.StateIdle, text: "Terminated: Reached max steps (3)",
		},
		"tokens": {
			turns: []turn{count()}, set: func(o *agent.Options) { o.More, o.Budget.Tokens = []agent.Tool{echo("echo", same)}, 500 },
			reason: agent.BudgetSpent, state: agent.StateIdle, text: "Terminated: Reached the budget of 500 tokens (550 used)",
		},
		"input tokens": {
			turns: []turn{count()}, set: func(o *agent.Options) { o.More, o.Budget.InputTokens = []agent.Tool{echo("echo", same)}, 150 },
			reason: agent.BudgetSpent, state: agent.StateIdle, text: "Terminated: Reached the budget of 150 tokens of input (200 used)",
		},
		"cost": {
			turns: []turn{count()}, set: func(o *agent.Options) {
				o.More, o.Budget.Cost, o.Price = []agent.Tool{echo("echo", same)}, 0.005, agent.Price{Input: 10, Output: 100}
			},
			reason: agent.BudgetSpent, state: agent.StateIdle, text: "Terminated: Reached the budget of 0.005 (0.006 used)",
		},
		"stuck":   {turns: []turn{text("hm")}, reason: agent.Stuck, state: agent.StateIdle, text: "Terminated: the model is stuck: 7 equal responses in a row"},
		"refusal": {turns: []turn{stops("no", model.StopRefusal)}, reason: agent.Failed, state: agent.StateFinished, text: "the model refuses to answer: no"},
		"model": {
			turns: []turn{fails(sandpit.Errorf(sandpit.Unavailable, "no line"))}, reason: agent.Error, state: agent.StateError,
			text: "ask the model test: no line",
		},
		"panic": {
			turns:  []turn{func(context.Context, model.Request, func(model.Delta)) (model.Response, error) { panic("broken") }},
			reason: agent.Error, state: agent.StateError, text: "the agent encountered a problem: panic: broken",
		},
		"no sandbox": {turns: []turn{calls("file_read {\"path\":\"a\"}")}, reason: agent.Error, state: agent.StateError, text: "this test has no sandbox"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKit(t, tc.turns, tc.set)
			if k.State() != agent.StateIdle {
				t.Errorf("at first: %s", k.State())
			}
			if o := k.want("do it", tc.reason, tc.state); o.Text != tc.text {
				t.Errorf("%q, want %q", o.Text, tc.text)
			}
			if last := k.events[len(k.events)-1]; last.Kind != agent.EventEnd || last.Outcome.Reason != tc.reason {
				t.Errorf("the last event: %+v", last)
			}
			if o, ok := k.read().Outcome(); !ok || o.Reason != tc.reason {
				t.Errorf("in the transcript: %+v", o)
			}
		})
	}
}

// count is a turn with another call each time.
func count() turn {
	var n atomic.Int64
	return func(ctx context.Context, r model.Request, d func(model.Delta)) (model.Response, error) {
		return calls(fmt.Sprintf(`echo {"text":"%d"}`, n.Add(1)))(ctx, r, d)
	}
}

func stops(s string, why model.StopReason) turn {
	return func(ctx context.Context, r model.Request, d func(model.Delta)) (model.Response, error) {
		response, err := text(s)(ctx, r, d)
		response.Stop = why
		return response, err
	}
}

// TestRunTwice has one task at a time, and the next one in the same conversation.
func TestRunTwice(t *testing.T) {
	t.Parallel()
	began, release := make(chan struct{}), make(chan struct{})
	wait := func(string) (string, error) {
		close(began)
		<-release
		return "waited", nil
	}
	k := newKit(t, []turn{calls("wait {}"), end("success", "one"), end("success", "two")}, func(o *agent.Options) { o.More = []agent.Tool{echo("wait", wait)} })
	if _, err := k.Run(t.Context(), "  "); sandpit.CodeOf(err) != sandpit.Invalid {
		t.Errorf("an empty task: %v", err)
	}
	done := make(chan error)
	go func() {
		_, err := k.Run(t.Context(), "first")
		done <- err
	}()
	<-began
	if _, err := k.Run(t.Context(), "second"); sandpit.CodeOf(err) != sandpit.Conflict || k.State() != agent.StateRunning {
		t.Errorf("while it runs: %v, %s", err, k.State())
	}
	close(release)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	k.want("second", agent.Finished, agent.StateFinished)
	last := k.model.requests[len(k.model.requests)-1]
	if first, second := last.Messages[0], last.Messages[len(last.Messages)-1]; first.Text != "first" || second.Text != "second" || second.Role != model.RoleUser {
		t.Errorf("the messages: %+v", last.Messages)
	}
	if err := k.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := k.Run(t.Context(), "third"); sandpit.CodeOf(err) != sandpit.Gone {
		t.Errorf("after Close: %v", err)
	}
}

// TestPrompts has the messages that the loop adds.
func TestPrompts(t *testing.T) {
	t.Parallel()
	k := newKit(t, []turn{text("I think"), stops("cut", model.StopLength), text(""), text("same"), text("same"), text("same"), end("success", "")}, nil)
	k.want("do it", agent.Finished, agent.StateFinished)
	var prompts []string
	for _, m := range k.read().Messages() {
		if m.Role == model.RoleUser {
			prompts = append(prompts, strings.Fields(m.Text)[0])
		}
		if m.Text == "" && len(m.Calls) == 0 && m.Role == model.RoleAssistant {
			t.Error("an empty response is in the conversation, which vendors refuse")
		}
	}
	if want := []string{"do", "Continue", "Your", "Continue", "Continue", "Continue", "Observed", "Continue"}; !slices.Equal(prompts, want) {
		t.Errorf("%q, want %q", prompts, want)
	}
	if r := k.model.requests; r[0].MustCall || !r[1].MustCall || r[2].MustCall {
		t.Error("the model must call a tool after a text alone, and only then")
	}
}

// TestCalls has calls that go wrong, and calls at the same time.
func TestCalls(t *testing.T) {
	t.Parallel()
	const atOnce = 3
	var running atomic.Int64
	met := make(chan struct{}) // closed when that many calls run
	slow := echo("slow", func(text string) (string, error) {
		if running.Add(1) == atOnce {
			close(met)
		}
		select {
		case <-met:
			return "slow " + text, nil
		case <-time.After(time.Minute):
			return "", errors.New("no other call runs")
		}
	})
	slow.ReadOnly = true
	k := newKit(t, []turn{
		calls("nothing {}", `echo {"text"`, "echo [1]", `echo {"text":1}`, `echo {"other":""}`, "bad {}", "burst {}", `ask_human {"inquire":"?"}`),
		calls(`slow {"text":"1"}`, `slow {"text":"2"}`, `slow {"text":"3"}`, `echo {"text":"4"}`, `terminate {"status":"success"}`, `echo {"text":"5"}`),
	}, func(o *agent.Options) {
		o.More = []agent.Tool{
			echo("echo", same), slow,
			echo("bad", func(string) (string, error) { return "", errors.New("it is bad") }),
			echo("burst", func(string) (string, error) { panic("burst") }),
		}
	})
	k.want("do it", agent.Finished, agent.StateFinished)
	want := []string{
		`ERROR: unknown tool "nothing" (use a tool from the list)`, "ERROR: parse the arguments of echo: invalid JSON: ", "ERROR: parse the arguments of echo: invalid JSON: ",
		"ERROR: invalid input: ", "ERROR: invalid input: ", "ERROR: it is bad", "ERROR: tool burst encountered a problem: panic: burst", "ERROR: no person answers",
		"slow 1", "slow 2", "slow 3", "4", "The task has ended", "ERROR: not carried out: the task has ended",
	}
	got := k.results()
	if len(got) != len(want) {
		t.Fatalf("%d results: %q", len(got), got)
	}
	for i, w := range want {
		if !strings.HasPrefix(got[i], w) {
			t.Errorf("result %d: %q, want %q", i, got[i], w)
		}
	}
	if n := running.Load(); n != atOnce {
		t.Errorf("%d calls of the slow tool, want %d", n, atOnce)
	}
	if k.count(agent.EventCall) != 13 || k.count(agent.EventResult) != 13 {
		t.Errorf("%d calls, %d results", k.count(agent.EventCall), k.count(agent.EventResult))
	}
}

// TestPlanAndAsk has the agent's own tools.
func TestPlanAndAsk(t *testing.T) {
	t.Parallel()
	k := newKit(t, []turn{
		calls(`plan {"steps":[{"text":"one","state":"done"},{"text":"two"}]}`, `ask_human {"inquire":"which?"}`), end("success", ""),
	}, func(o *agent.Options) {
		o.Ask = func(_ context.Context, question string) (string, error) { return "the answer to " + question, nil }
	})
	k.want("do it", agent.Finished, agent.StateFinished)
	if got := k.results(); got[0] != "1. [x] one\n2. [ ] two\n1 of 2 steps are finished" || got[1] != "the answer to which?" {
		t.Errorf("%q", got)
	}
}

// TestInterrupt ends the context in each phase.
func TestInterrupt(t *testing.T) {
	t.Parallel()
	for name, at := range map[string]int{"model": 0, "tool": 1} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancelCause(t.Context())
			turns := []turn{func(ctx context.Context, r model.Request, d func(model.Delta)) (model.Response, error) {
				if at == 0 {
					cancel(errors.New("enough"))
					<-ctx.Done()
					return model.Response{}, ctx.Err()
				}
				return calls("stop {}", "echo {}")(ctx, r, d)
			}}
			k := newKit(t, turns, func(o *agent.Options) {
				o.More = []agent.Tool{echo("echo", same), {Name: "stop", Call: func(ctx context.Context, _ json.RawMessage) (string, error) {
					cancel(errors.New("enough"))
					<-ctx.Done()
					return "", ctx.Err()
				}}}
			})
			o, err := k.Run(ctx, "do it")
			if err != nil || o.Reason != agent.Interrupted || o.Text != "Interrupted: enough" || k.State() != agent.StateIdle {
				t.Fatalf("%+v, %v, %s", o, err, k.State())
			}
			k.model.turns = append(k.model.turns, end("success", "after all"))
			if o := k.want("", agent.Finished, agent.StateFinished); o.Text != "after all" {
				t.Errorf("%+v", o)
			}
			checkPairs(t, k.model.requests[len(k.model.requests)-1].Messages)
		})
	}
}

// checkPairs wants each call to have its result right after it, in order.
func checkPairs(t *testing.T, messages []model.Message) {
	t.Helper()
	var open []string
	for i, m := range messages {
		if m.Role == model.RoleTool {
			if len(open) == 0 || open[0] != m.CallID {
				t.Fatalf("message %d answers %q, want one of %q", i, m.CallID, open)
			}
			open = open[1:]
			continue
		}
		if len(open) > 0 {
			t.Fatalf("message %d comes before the results of %q", i, open)
		}
		for _, c := range m.Calls {
			open = append(open, c.ID)
		}
	}
	if len(messages) == 0 || messages[0].Role != model.RoleUser || len(open) > 0 {
		t.Fatalf("%d messages, calls without result: %q", len(messages), open)
	}
}

// goneGuest is the guest of a sandbox that was deleted a moment ago.
type goneGuest struct{ sandpit.Guest }

func (goneGuest) Start(context.Context, sandpit.Command) (sandpit.Process, error) {
	return nil, sandpit.Errorf(sandpit.Gone, "it was deleted")
}

// TestLostBeforeSession has the sandbox end between being opened and being used: it is released, and
// the next call opens another one.
func TestLostBeforeSession(t *testing.T) {
	t.Parallel()
	opened, closed := 0, 0
	read := `file_read {"path":"a"}`
	k := newKit(t, []turn{calls(read), calls(read), end("success", "")}, func(o *agent.Options) {
		o.Open = func(context.Context) (agent.Sandbox, error) {
			opened++
			return agent.Sandbox{Guest: goneGuest{}, Close: func(context.Context) error {
				closed++
				return sandpit.Errorf(sandpit.Gone, "it was deleted")
			}}, nil
		}
	})
	k.want("do it", agent.Finished, agent.StateFinished)
	for _, text := range k.results()[:2] {
		if text != "ERROR: the sandbox has ended: find the working directory: it was deleted (the next call gets a new sandbox, without the files)" {
			t.Errorf("result %q", text)
		}
	}
	if opened != 2 || closed != 2 {
		t.Errorf("%d opened, %d closed", opened, closed)
	}
}

// TestObservation cuts long results, also without a sandbox for the rest.
func TestObservation(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("ä", 10_001)
	k := newKit(t, []turn{calls("long {}", "exact {}"), end("success", "")}, func(o *agent.Options) {
		o.More = []agent.Tool{echo("long", func(string) (string, error) { return long, nil }), echo("exact", func(string) (string, error) { return long[2:], nil })}
	})
	k.want("do it", agent.Finished, agent.StateFinished)
	got := k.results()
	if n := utf8.RuneCountInString(got[0]); n > 10_000 || n < 9_900 || !utf8.ValidString(got[0]) || !strings.Contains(got[0], "(10001 characters in total)") {
		t.Errorf("%d characters, ending with %q", n, got[0][len(got[0])-100:])
	}
	if got[1] != long[2:] {
		t.Errorf("a result of 10,000 characters was changed: %d", utf8.RuneCountInString(got[1]))
	}
}

// TestSecrets wants no secret in events and transcript: neither of the options nor of a call.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const key, value = "sk-quote\"and\\slash", "variable-value-1"
	k := newKit(t, []turn{
		calls(`echo {"text":"sk-quote\"and\\slash"}`, `env_set {"name":"message","value":"`+value+`","secret":true}`, `env_set {"name":"X","value":"message","secret":true}`),
		text("I know " + key + " and " + value), end("success", "the key is "+key),
	}, func(o *agent.Options) {
		o.Secrets, o.More = []string{key}, []agent.Tool{echo("echo", same)}
		(&kit{}).withFake(t)(o)
	})
	k.want("do it", agent.Finished, agent.StateFinished)
	events, err := json.Marshal(k.events)
	if err != nil {
		t.Fatal(err)
	}
	all := k.transcript.String() + string(events)
	for _, secret := range []string{key, `sk-quote\"and`, `sk-quote\\\"and`, value} {
		if strings.Contains(all, secret) {
			t.Errorf("%q is in the events or the transcript", secret)
		}
	}
	if got := k.results(); got[0] != "***" {
		t.Errorf("%q", got)
	}
}

// TestResume cuts a transcript in each of its lines until the task has ended, and continues each.
// TestContinue has its end.
func TestResume(t *testing.T) {
	t.Parallel()
	more := func(o *agent.Options) { o.More = []agent.Tool{echo("echo", same)} }
	k := newKit(t, []turn{calls(`echo {"text":"1"}`, `echo {"text":"2"}`), text("well"), calls(`echo {"text":"3"}`), end("success", "ok")}, more)
	k.want("do it", agent.Finished, agent.StateFinished)
	whole := k.transcript.Bytes()
	all, finish := k.read().Messages(), end("success", "resumed")
	var cuts []int
	before, _, _ := bytes.Cut(whole, []byte("The task has ended"))
	end, lines := 0, bytes.SplitAfter(before, []byte("\n"))
	for i, line := range lines {
		if i >= 2 {
			cuts = append(cuts, end, end+1, end+len(line)/2, end+len(line)-1)
		}
		end += len(line)
	}
	for _, n := range cuts {
		earlier, err := agent.ReadTranscript(bytes.NewReader(whole[:n]))
		if err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		file := bytes.NewBuffer(slices.Clone(whole[:earlier.Length()]))
		r := newKit(t, []turn{finish}, func(o *agent.Options) {
			more(o)
			o.Resume, o.Transcript = earlier, file
		})
		r.want("", agent.Finished, agent.StateFinished)
		checkPairs(t, r.model.requests[0].Messages)
		for i, m := range earlier.Messages() {
			if !reflect.DeepEqual(m, all[i]) && m.Role != model.RoleTool {
				t.Fatalf("%d bytes: message %d is %+v, want %+v", n, i, m, all[i])
			}
		}
		again, err := agent.ReadTranscript(bytes.NewReader(file.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if o, ok := again.Outcome(); !ok || o.Text != "resumed" {
			t.Fatalf("%d bytes: %+v", n, o)
		}
		if got := len(again.Responses()); got != len(earlier.Responses())+1 {
			t.Fatalf("%d responses", got)
		}
	}
	for text, want := range map[string]string{
		"":                                    "it has no messages",
		"{}\n":                                "the first line has the type",
		"nonsense\n":                          "line 1: invalid character",
		`{"type":"start","version":2}` + "\n": "version 2 is not supported",
		`{"type":"start","version":1}` + "\n" + `{"type":"message"}` + "\n":                           "it has no valid message",
		`{"type":"start","version":1}` + "\n" + `{"type":"message","message":{"role":"tool"}}` + "\n": "the first message is of the role",
	} {
		if _, err := agent.ReadTranscript(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) || sandpit.CodeOf(err) != sandpit.Invalid {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestTranscriptFails ends the task when a line cannot be written, before the call takes effect.
func TestTranscriptFails(t *testing.T) {
	t.Parallel()
	for lines := range 4 {
		ran := false
		k := newKit(t, []turn{calls(`echo {"text":"1"}`), end("success", "")}, func(o *agent.Options) {
			o.Transcript = &fullDisk{lines}
			o.More = []agent.Tool{echo("echo", func(string) (string, error) { ran = true; return "", nil })}
		})
		o, err := k.Run(t.Context(), "do it")
		if err == nil || o.Reason != agent.Error || !strings.Contains(err.Error(), "write the transcript: no space") {
			t.Errorf("%d lines: %+v, %v", lines, o, err)
		}
		if ran != (lines == 3) {
			t.Errorf("%d lines: the call ran: %v", lines, ran)
		}
	}
}

type fullDisk struct{ room int }

func (d *fullDisk) Write(p []byte) (int, error) {
	if d.room--; d.room < 0 {
		return 0, errors.New("no space")
	}
	return len(p), nil
}
