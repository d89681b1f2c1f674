package agent_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/internal/testing/testgvisor"
)

// hostileModel calls real tools with nonsense.
type hostileModel struct {
	random *rand.Rand
	mu     sync.Mutex
	n      int
	tools  []string
}

func (m *hostileModel) Name() string { return "hostile" }
func (m *hostileModel) Window() int  { return 60_000 }

// commands are what a hostile model would like to do to its sandbox.
var commands = []string{
	"yes | head -c 300000", "yes", "cat /dev/zero", "echo \u202egnp.exe\u2066; printf '\\xc0\\x80'", "cat /dev/urandom | head -c 100000", "for i in 1 2 3 4 5 6 7 8; do sleep 100 & done", "rm -rf /workspace; mkdir /workspace", "kill -9 -1; true", "exit 7",
	"printf '\\033[2J\\033]0;title\\007'", "python3 -c 'print(\"\\udcff\")'", "head -c 5000000 /dev/zero > big; rm big", "\x00", "'\"`$(",
	"exec sh", "cat /proc/self/environ", "ulimit -n 3; ls", "chmod 000 /workspace; ls", "ln -sf / loop; ls loop/loop/loop",
}

func (m *hostileModel) Generate(_ context.Context, r model.Request, _ func(model.Delta)) (model.Response, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.n++
	for _, t := range r.Tools {
		if m.n == 1 && t.Name != "terminate" {
			m.tools = append(m.tools, t.Name)
		}
	}
	response := model.Response{Message: model.Message{Text: fmt.Sprint("turn ", m.n)}, Stop: model.StopTools}
	for i := range 1 + m.random.IntN(3) {
		call := model.ToolCall{ID: fmt.Sprint(m.n, "-", i), Name: m.tools[m.random.IntN(len(m.tools))]}
		command := commands[m.random.IntN(len(commands))]
		switch m.random.IntN(4) {
		case 0: // no valid input
			call.Arguments = command
		case 1:
			call.Arguments = fmt.Sprintf(`{"path":%q,"command":%q,"action":%q,"timeout":-1}`, command, command, command)
		default:
			call.Name, call.Arguments = "sandbox_shell", fmt.Sprintf(`{"action":"execute_command","command":%q,"blocking":true,"timeout":0.3,"session_name":"s%d"}`, command, m.random.IntN(3))
		}
		response.Message.Calls = append(response.Message.Calls, call)
	}
	return response, nil
}

// TestHostileModel has models do their worst for 200 turns in real sandboxes.
func TestHostileModel(t *testing.T) {
	t.Parallel()
	const agents = 4
	provider := testgvisor.New(t)
	t.Run("agents", func(t *testing.T) {
		for seed := range uint64(agents) {
			t.Run(strconv.FormatUint(seed, 10), func(t *testing.T) {
				t.Parallel()
				doWorst(t, provider, seed, 200/agents)
			})
		}
	})
}

// doWorst has a hostile model answer a number of times.
func doWorst(t *testing.T, provider sandpit.Provider, seed uint64, turns int) {
	t.Helper()
	m := &hostileModel{random: rand.New(rand.NewPCG(7, seed))}
	var transcript strings.Builder
	results, longest, opened := 0, 0, 0
	one := must(agent.New(agent.Options{
		Model: m, MaxSteps: turns, Transcript: &transcript,
		Open: func(ctx context.Context) (agent.Sandbox, error) {
			opened++
			box, err := provider.Create(ctx, sandpit.NewID(), sandpit.Spec{})
			if err != nil {
				return agent.Sandbox{}, err
			}
			return agent.Sandbox{ID: box.ID(), Guest: box.Guest(), Close: box.Destroy}, nil
		},
		OnEvent: func(e agent.Event) {
			if e.Kind == agent.EventResult {
				results++
				longest = max(longest, len([]rune(e.Text)))
			}
		},
	}))(t)
	o, err := one.Run(t.Context(), "do your worst")
	if err != nil || o.Reason != agent.MaxSteps || o.Steps != turns {
		t.Errorf("%+v, %v", o, err)
	}
	if err := one.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if longest > agent.DefaultMaxObservation || results < turns {
		t.Errorf("%d results, the longest with %d characters", results, longest)
	}
	if _, err := agent.ReadTranscript(strings.NewReader(transcript.String())); err != nil {
		t.Error(err)
	}
	if strings.Contains(transcript.String(), canary) {
		t.Error("the key is in the transcript")
	}
	t.Logf("%d results in %d sandboxes", results, opened)
}
