package agent_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/agent/model/script"
	"github.com/sandpit-dev/sandpit/client"
	"github.com/sandpit-dev/sandpit/internal/testing/testengine"
)

// modelVariable is the name of a vendor's model that does the tasks in place of scripts. Its key is in
// the vendor's variable, or in SANDPIT_LLM_API_KEY.
const modelVariable = "SANDPIT_TEST_AGENT_MODEL"

// priceVariable is the value of --price for that model.
const priceVariable = "SANDPIT_TEST_AGENT_PRICE"

// typeVariable begins the variable with the protocol.
const typeVariable = "SANDPIT_LLM_API_TYPE="

// evaluationTime bounds a task.
const evaluationTime = 10 * time.Minute

// evaluation is a task for the program sandpit agent with a sandbox of a server.
type evaluation struct {
	name string
	// needs is a program of this machine. Default: none.
	needs  string
	prompt string
	// args are further options of the program. Default: none.
	args []string
	// files are in the sandbox before the task, and setup is a shell command that runs in it.
	files map[string]string
	setup string
	// turns are what the scripted model says, and before is called before it answers the request of
	// a number. Default: nothing is called.
	turns  []script.Turn
	before func(r *trial, request int64)
	// run runs the program. Default: once.
	run func(*trial) error
	// check returns why the task is not done well.
	check func(*trial) error
}

// trial is an attempt at an evaluation.
type trial struct {
	*server

	t       *testing.T
	ctx     context.Context //nolint:containedctx // of the attempt
	task    evaluation
	project string
	dir     string
	// model are variables that choose the model. scripted is nil for a vendor's.
	model    []string
	scripted *script.Model

	mu       sync.Mutex
	outcomes []agent.Outcome // of each program, if it ended
	answer   string
	events   strings.Builder
	took     time.Duration
}

// TestEvaluation has the program do ten tasks on a server, and prints a table. The model is scripted, or a
// vendor's if modelVariable is set: then a task that the model fails is only reported.
func TestEvaluation(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("drives programs only")
	}
	name := os.Getenv(modelVariable)
	protocols := map[string][]string{
		"chat":     {typeVariable + "openai", "/v1"},
		"messages": {typeVariable + "anthropic", ""},
	}
	if name != "" {
		protocols = map[string][]string{name: nil}
	}
	s := newServer(t)
	for protocol, settings := range protocols {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			tasks := evaluations(t)
			rows := make([]string, len(tasks))
			t.Run("tasks", func(t *testing.T) {
				for i, task := range tasks {
					t.Run(task.name, func(t *testing.T) {
						t.Parallel()
						rows[i] = evaluate(t, s, task, settings)
					})
				}
			})
			t.Logf("%d tasks by %s:\n%s", len(tasks), protocol, toTable(rows))
		})
	}
}

// TestStoppedSandbox has the sandbox stopped between two calls. The next one starts it again, with its
// files.
func TestStoppedSandbox(t *testing.T) {
	t.Parallel()
	task := evaluation{
		name: "stopped sandbox", prompt: "x",
		turns: []script.Turn{
			run("", "echo kept > file"), run("SUCCESS", "cat file"), finish("kept", "it is there"),
		},
		before: func(r *trial, request int64) {
			if request != 2 {
				return
			}
			box, err := r.box()
			if err == nil {
				err = r.owner().Sandboxes.Stop(r.ctx, box.ID)
			}
			if err != nil {
				r.t.Errorf("stop: %v", err)
			}
		},
		check: func(r *trial) error {
			if r.answer != "it is there" {
				return fmt.Errorf("the answer: %.200q", r.answer)
			}
			return nil
		},
	}
	evaluate(t, newServer(t), task, []string{typeVariable + "openai", "/v1"})
}

// toTable returns aligned rows below a headline.
func toTable(rows []string) string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "task\tresult\tend\tsteps\tinput\toutput\tcost\ttime")
	fmt.Fprintln(w, strings.Join(rows, "\n"))
	_ = w.Flush() // a builder never fails
	return b.String()
}

// evaluate does a task and returns its row of the table.
func evaluate(t *testing.T, s *server, task evaluation, settings []string) string {
	t.Helper()
	if task.needs != "" {
		if _, err := exec.LookPath(task.needs); err != nil {
			testengine.Skip(t, "this machine has no %s", task.needs)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), evaluationTime)
	defer cancel()
	r := &trial{server: s, t: t, ctx: ctx, task: task, project: strings.ReplaceAll(task.name, " ", "-"), dir: t.TempDir()}
	if settings == nil {
		r.model = append(vendorEnviron(), "SANDPIT_LLM_MODEL="+os.Getenv(modelVariable))
	} else {
		r.project += "-" + strings.TrimPrefix(settings[0], typeVariable)
		r.scripted = must(script.New(script.Script{Turns: task.turns}))(t)
		r.model = []string{settings[0], "SANDPIT_LLM_MODEL=script", "SANDPIT_LLM_BASE_URL=" + r.serve(r.scripted) + settings[1], "SANDPIT_LLM_API_KEY=" + canary}
	}
	if err := r.prepare(); err != nil {
		t.Fatalf("prepare: %v", err)
	}
	defer r.cleanUp()
	begun := time.Now()
	err := r.task.run(r)
	r.took = time.Since(begun)
	if err == nil {
		err = r.task.check(r)
	}
	if r.scripted != nil {
		err = errors.Join(err, r.scripted.Err())
		if n := r.scripted.Unused(); err == nil && n > 0 {
			err = fmt.Errorf("%d turns are left", n)
		}
	}
	if err != nil && r.scripted != nil {
		t.Errorf("%v\n%s", err, r.log())
	}
	r.checkKeys()
	return r.row(err)
}

// serve serves the scripted model.
func (r *trial) serve(m *script.Model) string {
	handler := script.NewServer(m, script.ServerOptions{Key: canary})
	var requests atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		if n := requests.Add(1); r.task.before != nil {
			r.task.before(r, n)
		}
		handler.ServeHTTP(w, q)
	}))
	r.t.Cleanup(s.Close)
	return s.URL
}

// vendorEnviron returns the variables that lead to a vendor's model, as they were when this process began.
func vendorEnviron() (variables []string) {
	for _, v := range environAtStart {
		for _, prefix := range []string{"ANTHROPIC_", "AZURE_OPENAI_", "OPENAI_", "SANDPIT_LLM_", "HTTPS_PROXY=", "SSL_CERT_"} {
			if strings.HasPrefix(v, prefix) {
				variables = append(variables, v)
			}
		}
	}
	return variables
}

// row returns the row of the table.
func (r *trial) row(err error) string {
	var spent agent.Spent
	steps, end := 0, agent.Reason("none")
	for _, o := range r.outcomes {
		spent.Usage, spent.Cost = spent.Usage.Add(o.Spent.Usage), spent.Cost+o.Spent.Cost
		steps, end = steps+o.Steps, o.Reason
	}
	result := "passed"
	if err != nil {
		result = "failed: " + strings.ReplaceAll(fmt.Sprintf("%.100v", err), "\n", " ")
	}
	return fmt.Sprintf("%s\t%s\t%s\t%d\t%d\t%d\t%.4f\t%.1f s", r.task.name, result, end, steps, spent.Usage.Input, spent.Usage.Output, spent.Cost, r.took.Seconds())
}

// prepare creates the sandbox of the project with its files.
func (r *trial) prepare() error {
	if r.task.run == nil {
		r.task.run = func(r *trial) error { return r.agent("agent", "--prompt", r.task.prompt) }
	}
	box, err := r.owner().Sandboxes.Create(r.ctx, client.CreateRequest{Spec: sandpit.Spec{Labels: map[string]string{"agent-project": r.project}}, Timeout: -1})
	if err != nil {
		return err
	}
	for name, text := range r.task.files {
		if err := box.WriteFile(r.ctx, name, []byte(text)); err != nil {
			return err
		}
	}
	if r.task.setup == "" {
		return nil
	}
	_, err = r.inside(r.task.setup)
	return err
}

// owner returns a client with the key of the agents.
func (r *trial) owner() *client.Client {
	c := must(client.New(client.Options{URL: r.url, Key: r.key}))(r.t)
	r.t.Cleanup(c.Close)
	return c
}

// box returns the sandbox of the project.
func (r *trial) box() (*client.Sandbox, error) {
	list, err := r.owner().Sandboxes.List(r.ctx, client.Filter{Labels: map[string]string{"agent-project": r.project}})
	if err != nil {
		return nil, err
	}
	if len(list) != 1 {
		return nil, fmt.Errorf("%d sandboxes of the project, want one", len(list))
	}
	return r.owner().Sandboxes.Get(r.ctx, list[0].ID)
}

// inside runs a shell command in the sandbox and returns its output. A status other than 0 is an error.
func (r *trial) inside(command string) (string, error) {
	box, err := r.box()
	if err != nil {
		return "", err
	}
	var out bytes.Buffer
	status, err := box.Exec(r.ctx, sandpit.Command{Args: []string{"sh", "-c", "mkdir -p /workspace && cd /workspace && " + command}, Stdout: &out, Stderr: &out})
	if err == nil && status.Code != 0 {
		err = fmt.Errorf("%s: %s: %.300s", command, status, out.String())
	}
	return out.String(), err
}

// deleteBox deletes the sandbox under the agent.
func (r *trial) deleteBox() {
	box, err := r.box()
	if err == nil {
		err = box.Delete(r.ctx)
	}
	if err != nil {
		r.t.Errorf("delete the sandbox: %v", err)
	}
}

func (r *trial) cleanUp() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), patience)
	defer cancel()
	r.ctx = ctx
	r.deleteBox()
}

// agent runs the program to its end with a transcript of a name.
func (r *trial) agent(name string, args ...string) error {
	return r.agentUntil(name, func(agent.Event) bool { return false }, args...)
}

// agentUntil runs the program until an event for which kill returns true, and kills it then.
func (r *trial) agentUntil(name string, kill func(agent.Event) bool, args ...string) error {
	args = slices.Concat([]string{"-o", "json", "--project", r.project}, args, r.task.args)
	if !slices.Contains(args, "--resume") {
		args = append(args, "--transcript", r.transcript(name))
	}
	if price := os.Getenv(priceVariable); price != "" {
		args = append(args, "--price", price)
	}
	cmd := r.program(r.t, args...)
	cmd.Env = append(cmd.Env, r.model...)
	var messages bytes.Buffer
	cmd.Stderr = &messages
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	killed, readErr := r.readEvents(out, func(e agent.Event) bool {
		return kill(e) && cmd.Process.Kill() == nil
	})
	_ = cmd.Wait() // its status is checked
	if readErr != nil || killed {
		return readErr
	}
	if status := cmd.ProcessState.ExitCode(); status != 0 && status != 11 {
		return fmt.Errorf("exit status %d: %.500s", status, messages.String())
	}
	return nil
}

// readEvents reads events until their end, or until stop returns true.
func (r *trial) readEvents(out io.Reader, stop func(agent.Event) bool) (stopped bool, err error) {
	for lines := json.NewDecoder(out); ; {
		var e agent.Event
		err := lines.Decode(&e)
		if errors.Is(err, io.EOF) {
			return stopped, nil
		}
		if err != nil && stopped {
			return true, nil // a part of a line
		}
		if err != nil {
			return false, fmt.Errorf("an event of the program: %w", err)
		}
		r.addEvent(e)
		stopped = stopped || stop(e)
	}
}

func (r *trial) addEvent(e agent.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Kind { //nolint:exhaustive // the others are not needed
	case agent.EventCall:
		fmt.Fprintf(&r.events, "%s %.300s\n", e.Tool, e.Call.Arguments)
	case agent.EventResult, agent.EventNotice:
		fmt.Fprintf(&r.events, "%s: %.500s\n", e.Kind, e.Text)
	case agent.EventEnd:
		r.outcomes, r.answer = append(r.outcomes, *e.Outcome), e.Outcome.Text
	}
}

func (r *trial) log() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.events.String()
}

func (r *trial) transcript(name string) string { return filepath.Join(r.dir, name+".jsonl") }

// checkKeys fails the test if a key is in a transcript, whichever model works.
func (r *trial) checkKeys() {
	keys := []string{canary, r.key}
	for _, v := range vendorEnviron() {
		if name, value, _ := strings.Cut(v, "="); strings.HasSuffix(name, "_KEY") && value != "" {
			keys = append(keys, value)
		}
	}
	names := must(filepath.Glob(filepath.Join(r.dir, "*.jsonl")))(r.t)
	if len(names) == 0 {
		r.t.Error("there is no transcript")
	}
	for _, name := range names {
		text := string(must(os.ReadFile(name))(r.t))
		if slices.ContainsFunc(keys, func(key string) bool { return strings.Contains(text, key) }) {
			r.t.Errorf("a key is in the transcript %s", name)
		}
	}
}
