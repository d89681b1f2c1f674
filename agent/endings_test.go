package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model"
)

// cut is a turn that ends at its limit.
func cut(t turn) turn {
	return func(ctx context.Context, r model.Request, d func(model.Delta)) (model.Response, error) {
		response, err := t(ctx, r, d)
		response.Stop = model.StopLength
		return response, err
	}
}

// TestCallsNotCarriedOut has responses whose calls may be incomplete, or are no longer wanted.
func TestCallsNotCarriedOut(t *testing.T) {
	t.Parallel()
	const done = "The task has ended"
	for name, tc := range map[string]struct {
		turns  []turn
		budget int
		reason agent.Reason
		ran    []string
		want   []string // the beginnings of the results
	}{
		"cut off in the arguments": {
			turns:  []turn{cut(calls(`echo {"text":"1"}`, `echo {"text":"2`)), end("success", "")},
			reason: agent.Finished, ran: []string{"1"}, want: []string{"1", "ERROR: not carried out: the response was cut off at its limit within this call", done},
		},
		"cut off before the arguments": {
			turns:  []turn{cut(calls(`echo {}`)), end("success", "")},
			reason: agent.Finished, want: []string{"ERROR: not carried out: the response was cut off", done},
		},
		"cut off after the arguments": {
			turns:  []turn{cut(calls(`echo {"text":"1"}`)), end("success", "")},
			reason: agent.Finished, ran: []string{"1"}, want: []string{"1", done},
		},
		"refusal": {
			turns: []turn{func(ctx context.Context, r model.Request, d func(model.Delta)) (model.Response, error) {
				response, err := calls(`echo {"text":"1"}`)(ctx, r, d)
				response.Stop = model.StopRefusal
				return response, err
			}},
			reason: agent.Failed, want: []string{"ERROR: not carried out: the model refuses to answer"},
		},
		"end beyond the budget": {
			turns:  []turn{calls(`echo {"text":"1"}`, `terminate {"status":"success"}`, `echo {"text":"2"}`)},
			budget: 110, reason: agent.Finished, want: []string{"ERROR: not carried out: the budget is spent", done, "ERROR: not carried out: the budget is spent"},
		},
		"invalid end beyond the budget": {
			turns:  []turn{calls(`terminate {"status":"maybe"}`)},
			budget: 110, reason: agent.BudgetSpent, want: []string{"ERROR: invalid input"},
		},
		"below the budget": {
			turns:  []turn{calls(`echo {"text":"1"}`), end("success", "")},
			budget: 111, reason: agent.Finished, ran: []string{"1"}, want: []string{"1", done},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var ran []string
			k := newKit(t, tc.turns, func(o *agent.Options) {
				o.Budget.Tokens = tc.budget
				o.More = []agent.Tool{echo("echo", func(text string) (string, error) { ran = append(ran, text); return text, nil })}
			})
			o, err := k.Run(t.Context(), "do it")
			if err != nil || o.Reason != tc.reason || !slices.Equal(ran, tc.ran) {
				t.Errorf("%+v, %v; the calls %q ran", o, err, ran)
			}
			got := k.results()
			if len(got) != len(tc.want) {
				t.Fatalf("results %q, want %q", got, tc.want)
			}
			for i, want := range tc.want {
				if !strings.HasPrefix(got[i], want) {
					t.Errorf("result %d: %q, want %q", i, got[i], want)
				}
			}
			checkPairs(t, k.read().Messages())
		})
	}
}

// TestUsageMissing has a budget end a task although the model reports no usage, and the same after the
// task was resumed.
func TestUsageMissing(t *testing.T) {
	t.Parallel()
	silent := func(ctx context.Context, r model.Request, d func(model.Delta)) (model.Response, error) {
		response, err := count()(ctx, r, d)
		response.Usage = model.Usage{}
		return response, err
	}
	k := newKit(t, []turn{silent}, func(o *agent.Options) {
		o.More, o.Budget.Tokens, o.MaxSteps = []agent.Tool{echo("echo", func(string) (string, error) { return time.Now().String(), nil })}, 30_000, 100
	})
	o := k.want("do it", agent.BudgetSpent, agent.StateIdle)
	if o.Steps < 2 || o.Spent.Usage.Input < 10_000 || k.count(agent.EventNotice) != 1 {
		t.Errorf("%+v, %d notices", o, k.count(agent.EventNotice))
	}
	again := newKit(t, []turn{silent}, func(o *agent.Options) { o.Resume, o.Budget.Tokens = k.read(), 30_000 })
	if o := again.want("", agent.BudgetSpent, agent.StateIdle); len(again.model.requests) > 0 || o.Spent != k.Spent() {
		t.Errorf("resumed: %+v, want %+v", o.Spent, k.Spent())
	}
}

// TestPanics has functions of the options panic while a call runs: the task ends, and the program does
// not.
func TestPanics(t *testing.T) {
	t.Parallel()
	for name, set := range map[string]func(*agent.Options){
		"open": func(o *agent.Options) { o.Open = func(context.Context) (agent.Sandbox, error) { panic("broken") } },
		"wake": func(o *agent.Options) {
			o.Open = func(context.Context) (agent.Sandbox, error) {
				return agent.Sandbox{Wake: func(context.Context) (sandpit.Guest, error) { panic("broken") }}, nil
			}
		},
		"event": func(o *agent.Options) {
			o.OnEvent = func(e agent.Event) {
				if e.Kind == agent.EventResult {
					panic("broken")
				}
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			k := newKit(t, []turn{calls(`file_read {"path":"a"}`, `file_read {"path":"b"}`)}, set)
			if o := k.want("do it", agent.Error, agent.StateError); !strings.Contains(o.Text, "panic: broken") {
				t.Errorf("%+v", o)
			}
			if _, err := k.Run(t.Context(), ""); err == nil && name != "event" {
				t.Error("the second attempt has no error")
			}
		})
	}
}

// TestContinue cuts transcripts after each of their lines, and continues each: no request ends with a
// message of the assistant, and a task that the model has ended is not done again.
func TestContinue(t *testing.T) {
	t.Parallel()
	more := func(o *agent.Options) { o.More = []agent.Tool{echo("echo", same)} }
	k := newKit(t, []turn{text("well"), cut(text("I wri")), calls(`echo {"text":"3"}`), end("success", "ok")}, more)
	k.want("do it", agent.Finished, agent.StateFinished)
	lines := bytes.SplitAfter(k.transcript.Bytes(), []byte("\n"))
	for n := 2; n < len(lines); n++ {
		earlier, err := agent.ReadTranscript(bytes.NewReader(bytes.Join(lines[:n], nil)))
		if err != nil {
			t.Fatal(err)
		}
		var prompts []string
		r := newKit(t, []turn{func(ctx context.Context, r model.Request, d func(model.Delta)) (model.Response, error) {
			for _, m := range r.Messages[1:] {
				if m.Role == model.RoleUser {
					prompts = append(prompts, strings.Fields(m.Text)[0])
				}
			}
			if last := r.Messages[len(r.Messages)-1]; last.Role == model.RoleAssistant {
				t.Errorf("%d lines: the request ends with %+v", n, last)
			}
			return end("success", "resumed")(ctx, r, d)
		}}, func(o *agent.Options) { more(o); o.Resume = earlier })
		o, err := r.Run(t.Context(), "")
		_, ended := earlier.Outcome()
		switch {
		case ended:
			if sandpit.CodeOf(err) != sandpit.Invalid || r.State() != agent.StateIdle {
				t.Errorf("%d lines, after the end: %+v, %v, %s", n, o, err, r.State())
			}
			if o := r.want("more", agent.Finished, agent.StateFinished); o.Text != "resumed" {
				t.Errorf("another task: %+v", o)
			}
		case n == len(lines)-2: // all but the end
			if err != nil || o.Reason != agent.Finished || o.Text != "ok" || len(r.model.requests) > 0 {
				t.Errorf("%d lines, after terminate: %+v, %v, %d requests", n, o, err, len(r.model.requests))
			}
		default:
			if want := []string{"Continue", "Your"}[:min((n-1)/2, 2)]; err != nil || o.Text != "resumed" || !slices.Equal(prompts, want) {
				t.Errorf("%d lines: %+v, %v, prompts %q, want %q", n, o, err, prompts, want)
			}
		}
	}
	if got := k.read().Responses(); got[1].Stop != model.StopLength || got[0].Stop != model.StopEnd || got[2].Stop != model.StopTools {
		t.Errorf("the responses for a replay: %+v", got)
	}
}

// TestReplay has a model repeat the responses of a transcript: the conversation becomes the same.
func TestReplay(t *testing.T) {
	t.Parallel()
	more := func(o *agent.Options) { o.More = []agent.Tool{echo("echo", same)} }
	k := newKit(t, []turn{text("well"), cut(text("I wri")), cut(calls(`echo {"text":"3`)), stops("no", model.StopRefusal)}, more)
	want := k.want("do it", agent.Failed, agent.StateFinished)
	var turns []turn
	for _, r := range k.read().Responses() {
		turns = append(turns, func(context.Context, model.Request, func(model.Delta)) (model.Response, error) { return r, nil })
	}
	again := newKit(t, turns, more)
	if got := again.want("do it", agent.Failed, agent.StateFinished); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got, want := fmt.Sprint(again.read().Messages()), fmt.Sprint(k.read().Messages()); got != want {
		t.Errorf("the conversation is %s\nwant %s", got, want)
	}
}

// TestCutOffResponse has responses that end in the middle: the model is asked again, and the parts are in
// neither the conversation nor the transcript.
func TestCutOffResponse(t *testing.T) {
	t.Parallel()
	broken := func(_ context.Context, _ model.Request, d func(model.Delta)) (model.Response, error) {
		d(model.Delta{Text: "half"})
		d(model.Delta{CallName: "echo"})
		return model.Response{}, sandpit.WithRetry(sandpit.Errorf(sandpit.Unavailable, "the connection ended"), time.Millisecond)
	}
	k := newKit(t, []turn{broken, end("success", "")}, nil)
	o := k.want("do it", agent.Finished, agent.StateFinished)
	if o.Steps != 1 || k.count(agent.EventNotice) != 1 || strings.Contains(k.transcript.String(), "half") {
		t.Errorf("%+v, %d notices, the transcript:\n%s", o, k.count(agent.EventNotice), k.transcript.String())
	}
	again := newKit(t, []turn{broken}, nil)
	again.want("do it", agent.Error, agent.StateError)
	if n := len(again.model.requests); n != 3 {
		t.Errorf("%d requests", n)
	}
	final := newKit(t, []turn{func(_ context.Context, _ model.Request, d func(model.Delta)) (model.Response, error) {
		d(model.Delta{Text: "half"})
		return model.Response{}, sandpit.Errorf(sandpit.Unauthenticated, "the key has expired")
	}}, nil)
	final.want("do it", agent.Error, agent.StateError)
	if n := len(final.model.requests); n != 1 {
		t.Errorf("%d requests with a key that has expired", n)
	}
}

// TestSplitSecret has a secret arrive in parts.
func TestSplitSecret(t *testing.T) {
	t.Parallel()
	const key = "sk-0123456789"
	k := newKit(t, []turn{func(ctx context.Context, r model.Request, d func(model.Delta)) (model.Response, error) {
		for _, part := range []string{"key s", "k-01234", "56789 and s", "k-other, s", "k-0"} {
			d(model.Delta{Text: part})
		}
		return end("success", "")(ctx, r, d)
	}}, func(o *agent.Options) { o.Secrets = []string{key} })
	k.want("do it", agent.Finished, agent.StateFinished)
	var shown strings.Builder
	for _, e := range k.events {
		if e.Kind == agent.EventDelta {
			shown.WriteString(e.Text)
		}
	}
	if shown.String() != "key *** and sk-other, sk-0" {
		t.Errorf("%q", shown.String())
	}
}

// TestLargeCalls has the largest calls: the transcript can be read again, and IDs stay unique.
func TestLargeCalls(t *testing.T) {
	t.Parallel()
	k := newKit(t, []turn{func(context.Context, model.Request, func(model.Delta)) (model.Response, error) {
		var response model.Response
		for range 64 {
			response.Message.Calls = append(response.Message.Calls, model.ToolCall{ID: "call_1_1", Name: "none", Arguments: strings.Repeat("\x00", 1<<20)})
		}
		return response, nil
	}, end("success", "")}, nil)
	k.want("do it", agent.Finished, agent.StateFinished)
	messages := k.read().Messages()
	checkPairs(t, messages)
	ids := map[string]bool{}
	for _, c := range messages[1].Calls {
		if ids[c.ID] {
			t.Errorf("two calls have the ID %s", c.ID)
		}
		ids[c.ID] = true
	}
}

// TestRunsAtOnce has tasks without a text begin while another runs, and after it. The race detector looks
// at the state.
func TestRunsAtOnce(t *testing.T) {
	t.Parallel()
	done := make(chan struct{})
	k := newKit(t, []turn{count(), count(), count(), end("success", "")}, func(o *agent.Options) {
		o.OnEvent = func(agent.Event) {}
		o.More = []agent.Tool{{Name: "echo", Call: func(context.Context, json.RawMessage) (string, error) { return "", nil }}}
	})
	go func() {
		defer close(done)
		for range 200 {
			_, _ = k.Run(t.Context(), "")
		}
	}()
	for k.State() != agent.StateFinished {
		if _, err := k.Run(t.Context(), "do it"); err != nil && sandpit.CodeOf(err) != sandpit.Conflict {
			t.Error(err)
		}
	}
	<-done
}

// TestInterruptedCalls interrupts a task within a call: its result says that the effect is unknown, unless the call had
// ended, and that the next one was not carried out.
func TestInterruptedCalls(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		fails bool
		want  string
	}{
		"cut off": {true, "ERROR: interrupted: it is unknown whether the call took effect"},
		"ended":   {false, "done"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			k := newKit(t, []turn{calls("work {}", "work {}")}, func(o *agent.Options) {
				o.More = []agent.Tool{{Name: "work", Call: func(ctx context.Context, _ json.RawMessage) (string, error) {
					cancel()
					if tc.fails {
						return "", ctx.Err()
					}
					return "done", nil
				}}}
			})
			o, err := k.Run(ctx, "do it")
			results := k.results()
			if err != nil || o.Reason != agent.Interrupted || len(results) != 2 {
				t.Fatalf("%+v, %v, results %q", o, err, results)
			}
			if !strings.HasPrefix(results[0], tc.want) || results[1] != "ERROR: not carried out: interrupted" {
				t.Errorf("results %q, want %q and one that was not carried out", results, tc.want)
			}
			checkPairs(t, k.read().Messages())
		})
	}
}
