package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/agent/model/anthropic"
	"github.com/sandpit-dev/sandpit/agent/model/openai"
	"github.com/sandpit-dev/sandpit/agent/model/script"
	"github.com/sandpit-dev/sandpit/internal/testing/testdocker"
	"github.com/sandpit-dev/sandpit/internal/testing/testgvisor"
)

// canary is a secret in the environment of this process, as keys of vendors are. It must never be in
// a sandbox or in a transcript.
const canary = "sk-canary-0123456789abcdef"

// patience bounds everything that a test waits for.
const patience = 2 * time.Minute

// environAtStart is the environment before the canary is in it.
var environAtStart []string

func TestMain(m *testing.M) {
	environAtStart = os.Environ()
	for _, name := range []string{"OPENAI_API_KEY", "ANTHROPIC_API_KEY", "SANDPIT_API_KEY"} {
		if err := os.Setenv(name, canary); err != nil {
			panic(err)
		}
	}
	os.Exit(testdocker.Main(m))
}

// protocols are the ways to a model.
var protocols = map[string]func(*testing.T, *script.Model) model.Model{
	"direct": func(_ *testing.T, m *script.Model) model.Model { return m },
	"chat": func(t *testing.T, m *script.Model) model.Model {
		t.Helper()
		return must(openai.New(openai.Options{Model: "script", BaseURL: serve(t, m) + "/v1", Key: canary, Window: m.Window()}))(t)
	},
	"responses": func(t *testing.T, m *script.Model) model.Model {
		t.Helper()
		return must(openai.New(openai.Options{Model: "script", BaseURL: serve(t, m) + "/v1", Key: canary, Window: m.Window(), API: openai.Responses}))(t)
	},
	"messages": func(t *testing.T, m *script.Model) model.Model {
		t.Helper()
		return must(anthropic.New(anthropic.Options{Model: "script", BaseURL: serve(t, m), Key: canary, Window: m.Window()}))(t)
	},
}

// serve serves the protocols of vendors for a model.
func serve(t *testing.T, m *script.Model) string {
	t.Helper()
	s := httptest.NewServer(script.NewServer(m, script.ServerOptions{Key: canary}))
	t.Cleanup(s.Close)
	return s.URL
}

func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatalf("%v (hint: %s)", err, sandpit.HintOf(err))
		}
		return value
	}
}

// turn is a turn of a script with one call.
func turn(expect, name string, arguments map[string]any) script.Turn {
	t := script.Turn{Calls: []script.Call{{Name: name, Arguments: arguments}}}
	t.Expect.Last = expect
	return t
}

// run is a turn with a shell command.
func run(expect, command string) script.Turn {
	return turn(expect, "sandbox_shell", map[string]any{"action": "execute_command", "command": command, "blocking": true})
}

// finish is a turn that ends the task.
func finish(expect, message string) script.Turn {
	return turn(expect, "terminate", map[string]any{"status": "success", "message": message})
}

// kit is an agent with a scripted model and sandboxes of gVisor.
type kit struct {
	*agent.Agent

	t          *testing.T
	script     *script.Model
	boxes      []sandpit.Instance
	closed     int
	transcript bytes.Buffer
	events     []agent.Event
}

// newKit returns an agent. Set changes its options.
func newKit(t *testing.T, way func(*testing.T, *script.Model) model.Model, turns []script.Turn, set func(*kit, *agent.Options)) *kit {
	t.Helper()
	k := &kit{t: t, script: must(script.New(script.Script{Turns: turns}))(t)}
	o := agent.Options{Model: way(t, k.script), Transcript: &k.transcript, OnEvent: func(e agent.Event) { k.events = append(k.events, e) }}
	provider := testgvisor.New(t)
	o.Open = func(ctx context.Context) (agent.Sandbox, error) {
		box, err := provider.Create(ctx, sandpit.NewID(), sandpit.Spec{})
		if err != nil {
			return agent.Sandbox{}, err
		}
		k.boxes = append(k.boxes, box)
		return agent.Sandbox{ID: box.ID(), Guest: box.Guest(), Close: func(ctx context.Context) error {
			k.closed++
			return box.Destroy(ctx)
		}}, nil
	}
	if set != nil {
		set(k, &o)
	}
	k.Agent = must(agent.New(o))(t)
	t.Cleanup(func() {
		if err := k.Close(context.WithoutCancel(t.Context())); err != nil {
			t.Errorf("close: %v", err)
		}
		if k.closed != len(k.boxes) {
			t.Errorf("%d sandboxes, %d of them closed", len(k.boxes), k.closed)
		}
	})
	return k
}

// want runs a task and checks its end: the outcome, that the script is used up, and that no secret is
// anywhere.
func (k *kit) want(reason agent.Reason, text string) {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), patience)
	defer cancel()
	o, err := k.Run(ctx, "the task")
	if err != nil || k.script.Err() != nil {
		k.t.Fatalf("%v; script: %v\n%s", err, k.script.Err(), k.log())
	}
	if o.Reason != reason || !strings.Contains(o.Text, text) || k.script.Unused() != 0 {
		k.t.Fatalf("%+v with %d turns left, want %s and %q\n%s", o, k.script.Unused(), reason, text, k.log())
	}
	k.checkRecords()
}

// checkRecords checks the transcript and the events.
func (k *kit) checkRecords() {
	k.t.Helper()
	events, err := json.Marshal(k.events)
	if err != nil {
		k.t.Fatal(err)
	}
	for name, text := range map[string]string{"transcript": k.transcript.String(), "events": string(events)} {
		if strings.Contains(text, canary) {
			k.t.Errorf("the key is in the %s", name)
		}
	}
	if strings.Contains(k.transcript.String(), "sandpit_ticket") || strings.Contains(k.transcript.String(), "sandpit_token") {
		k.t.Error("a token of a preview is in the transcript")
	}
	if _, err := agent.ReadTranscript(bytes.NewReader(k.transcript.Bytes())); err != nil {
		k.t.Errorf("%v", err)
	}
}

// log returns the events of calls for a message.
func (k *kit) log() string {
	var b strings.Builder
	for _, e := range k.events {
		switch e.Kind { //nolint:exhaustive // the others say less
		case agent.EventCall:
			fmt.Fprintf(&b, "%s %.500s\n", e.Tool, e.Call.Arguments)
		case agent.EventResult, agent.EventNotice, agent.EventEnd:
			fmt.Fprintf(&b, "%s: %.1000s\n", e.Kind, e.Text)
		}
	}
	return b.String()
}

// file checks a file of the last sandbox, which still exists.
func (k *kit) file(name, want string) {
	k.t.Helper()
	if got := readFile(k.t, k.boxes[len(k.boxes)-1].Guest(), name); !strings.Contains(got, want) {
		k.t.Errorf("%s: %.500q, want %q", name, got, want)
	}
}

// readFile returns a file, or "" if it does not exist.
func readFile(t *testing.T, g sandpit.Guest, name string) string {
	t.Helper()
	var b bytes.Buffer
	p, err := g.Start(t.Context(), sandpit.Command{Args: []string{"cat", name}, Stdout: &b})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b.String()
}
