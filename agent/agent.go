// Package agent runs a language model that does a task with tools in a sandbox.
//
// An Agent is a loop: it sends the conversation to the model, carries out the calls of tools that the
// model asks for, and adds their results to the conversation, until the model says that the task is
// done or a limit is reached. The sandbox is the boundary: everything that a model causes to run,
// MCP servers included unless they have MCPServer.OnHost, runs in it. Output of tools is data for the
// model, never an instruction to this package.
//
//	a, err := agent.New(agent.Options{Model: m, Open: openSandbox})
//	if err != nil {
//		return err
//	}
//	defer a.Close(ctx)
//	outcome, err := a.Run(ctx, "Fix the failing test")
package agent

import (
	"context"
	"io"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent/model"
	"github.com/sandpit-dev/sandpit/internal/agents/mcpclient"
	"github.com/sandpit-dev/sandpit/internal/agents/tool"
)

// Defaults of Options.
const (
	DefaultMaxSteps       = 20
	DefaultMaxObservation = 10_000
	defaultResponseTime   = 10 * time.Minute
)

// Options configure an Agent. Fields without a stated default are required.
type Options struct {
	// Model decides what to do.
	Model model.Model
	// Open creates or finds the sandbox. It is called when the first call of a tool needs it, and
	// again after the sandbox has ended; if it fails, so does the task. It is not called concurrently.
	Open func(ctx context.Context) (Sandbox, error)
	// Tools chooses tools of the sandbox: "default", "all", categories such as "git", or names.
	// Default: "default", a short list for most work.
	Tools []string
	// More are further tools. Default: none.
	More []Tool
	// MCPServers are servers whose tools the model gets, by name. They run in the sandbox, or are
	// contacted from it, unless MCPServer.OnHost is set, and the sandbox is then created before the
	// first response of the model. A server that fails is reported with an event and left out. Default: none.
	MCPServers map[string]MCPServer
	// Ask asks a person a question of the model. Default: the model gets an error.
	Ask func(ctx context.Context, question string) (string, error)
	// Conversation ends a task with a response without calls, which is then the answer. Default:
	// the model is asked to continue until it calls the tool terminate.
	Conversation bool
	// Instructions are added to the system prompt. Default: none.
	Instructions string
	// MaxSteps limits the responses of the model for a task. Default: 20.
	MaxSteps int
	// MaxObservation bounds the text of a result, in characters; the complete text is in a file of
	// the sandbox. Default: 10,000.
	MaxObservation int
	// MaxTokens bounds each response of the model. Default: the model's own.
	MaxTokens int
	// ResponseTimeout bounds the time of each response. Default: 10 minutes.
	ResponseTimeout time.Duration
	// Budget bounds what all tasks together take. Default: no bound.
	Budget Budget
	// Price is the price of the model. Default: unknown, and the costs are 0.
	Price Price
	// CommandTimeout bounds commands whose call has no timeout. Default: each tool's own.
	CommandTimeout time.Duration
	// OnEvent receives events, one at a time, from several goroutines. It must not call methods of the
	// agent. Default: none.
	OnEvent func(Event)
	// Transcript receives the transcript as lines of JSON, each with one Write, and each before its
	// effects. If a Write fails, the task fails. Default: there is no transcript.
	Transcript io.Writer
	// Resume is the transcript of an agent that the new one continues. Default: none.
	Resume *Transcript
	// Secrets are values that are masked in results, events and the transcript, such as keys of
	// this program. Default: none.
	Secrets []string
}

// withDefaults checks the options. Invalid: a field is missing, or a value makes no sense.
func (o Options) withDefaults() (Options, error) {
	switch {
	case o.Model == nil:
		return o, sandpit.Errorf(sandpit.Invalid, "an agent needs a model")
	case o.Open == nil:
		return o, sandpit.Errorf(sandpit.Invalid, "an agent needs a function that opens its sandbox")
	case o.MaxSteps < 0, o.MaxObservation < 0, o.MaxTokens < 0, o.ResponseTimeout < 0:
		return o, sandpit.Errorf(sandpit.Invalid, "a limit of an agent is negative")
	}
	if o.MaxSteps == 0 {
		o.MaxSteps = DefaultMaxSteps
	}
	if o.MaxObservation == 0 {
		o.MaxObservation = DefaultMaxObservation
	}
	if o.MaxObservation < minObservation {
		return o, sandpit.Errorf(sandpit.Invalid, "results of %d characters are too short; want at least %d", o.MaxObservation, minObservation)
	}
	if o.ResponseTimeout == 0 {
		o.ResponseTimeout = defaultResponseTime
	}
	return o, o.Budget.check(o.Price)
}

// Agent does tasks, one after the other, in one conversation and one sandbox. All methods may be
// called concurrently.
type Agent struct {
	o        Options
	own      *tool.Registry // the tools without those of MCP servers
	place    *workplace
	servers  *serverSet
	masks    *masks
	recorder *recorder

	events sync.Mutex // held while OnEvent runs

	mu    sync.Mutex // guards the following
	state State
	spent Spent
	links map[int]Link // of the sandbox, by port

	// Only the running task uses these.
	conversation conversation
	tools        toolSet
	begun        bool // the transcript has its first line
	ended        bool // the model has ended the last task
	estimates    bool // the model reports no usage

	step atomic.Int64 // the number of responses of the task
}

// New returns an agent in the state idle. It neither creates a sandbox nor sends a request. The
// caller must Close it.
//
// Invalid: the options.
func New(o Options) (*Agent, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	a := &Agent{o: o, state: StateIdle, masks: newMasks(o.Secrets)}
	a.recorder = &recorder{out: o.Transcript, masks: a.masks}
	a.place = &workplace{open: o.Open, prepare: a.prepareSession, link: a.emitLink, opened: a.recordSandbox, notify: a.notify}
	if a.servers, err = newServerSet(o.MCPServers); err != nil {
		return nil, err
	}
	a.masks.add(mcpclient.Config(a.servers.configs).Secrets()...)
	if a.own, err = a.newRegistry(); err != nil {
		return nil, err
	}
	if a.tools, err = newToolSet(a.own); err != nil {
		return nil, err
	}
	if o.Resume != nil {
		a.resumeFrom(o.Resume)
	}
	return a, nil
}

// prepareSession hides secrets in results of a new session.
func (a *Agent) prepareSession(s *tool.Session) {
	for _, value := range a.o.Secrets {
		s.HideSecret(value)
	}
}

func (a *Agent) recordSandbox(id sandpit.ID) error {
	a.mu.Lock()
	a.links = nil
	a.mu.Unlock()
	return a.recorder.write(entry{Type: entrySandbox, Sandbox: id})
}

// State returns the state.
func (a *Agent) State() State {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.state
}

// Spent returns what the responses have taken so far.
func (a *Agent) Spent() Spent {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.spent
}

// Links returns the latest link to each port of the sandbox that was reported, by port.
func (a *Agent) Links() map[int]Link {
	a.mu.Lock()
	defer a.mu.Unlock()
	return maps.Clone(a.links)
}

// SandboxID returns the ID of the sandbox, and whether there is one. It waits while the sandbox is
// created.
func (a *Agent) SandboxID() (id sandpit.ID, exists bool) { return a.place.sandboxID() }

// Close releases the sandbox. Tools that still run fail. It is idempotent, and works after ctx has
// ended; it has a timeout of its own.
func (a *Agent) Close(ctx context.Context) error { return a.place.close(ctx) }
