package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandpit-dev/sandpit"
	"github.com/sandpit-dev/sandpit/agent"
	"github.com/sandpit-dev/sandpit/internal/app/config"
)

// agentCommand has the options of sandpit agent.
type agentCommand struct {
	runCommand

	prompt       string
	model        string
	script       string
	servers      string
	onHost       []string
	tools        []string
	instructions string
	maxSteps     int
	budget       string
	price        string
	transcript   string
	resume       string
	project      string
	keep         bool
	format       string
}

// Output formats of sandpit agent.
const formatText = "text"

func newAgent(a *app) *cobra.Command {
	var o agentCommand
	cmd := &cobra.Command{
		Use:   "agent [flags] [IMAGE]",
		Short: "Let a language model do a task in a sandbox",
		Long: `Let a language model do a task with tools in a sandbox: files, shells, code, git, a
browser, and tools of MCP servers. The task is --prompt, or standard input; without both,
on a terminal, the agent reads tasks from it until "exit".

The model is a section of the configuration: [llm], or [llm.NAME] with --model NAME. With
--script it follows a file instead, without a vendor.

The sandbox is created for the first call of a tool and deleted at the end. It has no
network without --network, and sees nothing of this machine except IMAGE and -v. With a
server (--server, SANDPIT_URL) it is created there. --project NAME uses the server's sandbox
of that project again, and keeps it. MCP servers run in the sandbox, except those of
--mcp-host, whose tools act on this machine as the model asks them to.

The answer is printed on standard output, progress and costs on standard error. Every step is
written to a transcript before it takes effect; --resume continues one, also after this
program was killed. Secrets of the configuration are not in it.

Exit status: 0 the task is done, ` + agentStatuses + `; 130
after Ctrl-C, 143 after SIGTERM, 129 after SIGHUP: the task was interrupted. Otherwise as
for other commands.`,
		Example: `  sandpit agent --prompt 'Fix the failing test' -v ./project:/workspace:rw
  sandpit agent --model fast --budget 200k < task.md
  sandpit agent --network --mcp-config mcp.json --prompt 'Summarize the news'
  sandpit agent --project shop
  sandpit agent --script testdata/task.toml --prompt 'Try it' -o json
  sandpit agent --resume ~/.local/state/sandpit/transcripts/20260102-030405-k3jx.jsonl`,
		Args: wantArgs(0, 1, "an image"),
		RunE: a.withoutClient(o.run),
	}
	o.addFlags(cmd)
	return cmd
}

func (o *agentCommand) addFlags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVarP(&o.prompt, "prompt", "p", "", "`text` of the task (default standard input)")
	f.StringVar(&o.model, "model", "", "`name` of the model's section in the configuration (default [llm])")
	f.StringVar(&o.script, "script", "", "`file` that the model follows, for tests without a vendor")
	f.StringSliceVar(&o.tools, "tools", nil, "`tools` of the model: default, all, categories ("+strings.Join(categoryNames(), ", ")+") or names of tools (default \"default\")")
	f.StringVar(&o.servers, "mcp-config", "", "`file` of MCP servers whose tools the model gets: {\"mcpServers\": {…}}")
	f.StringSliceVar(&o.onHost, "mcp-host", nil, "run this MCP server of --mcp-config on this machine, outside of the sandbox: a `name`")
	f.StringVar(&o.instructions, "instructions", "", "`text` to add to the system prompt")
	f.IntVar(&o.maxSteps, "max-steps", agent.DefaultMaxSteps, "end a task after `N` responses of the model")
	f.StringVar(&o.budget, "budget", "", "end after this `amount`: of tokens, such as 200k, or of money, such as 1.50usd")
	f.StringVar(&o.price, "price", "", "`prices` of a million tokens of input and output, such as 3,15, to show the cost and for --budget")
	f.StringVar(&o.transcript, "transcript", "", "`file` for the transcript, or none (default a new one in the state directory)")
	f.StringVar(&o.resume, "resume", "", "continue the task of this `transcript`, or begin a new one in its conversation with --prompt")
	f.StringVar(&o.project, "project", "", "use the sandbox of this project on the server, or create it, and keep it: a `name`")
	f.BoolVar(&o.keep, "keep", false, "keep the sandbox, on a server")
	o.format = formatText
	addChoice(cmd, &o.format, "output,o", "`FORMAT`: text, or json for events as lines of JSON", formatText, formatJSON)
	o.addSandboxFlags(f, "", "")
}

func (o *agentCommand) run(cmd *cobra.Command, a *app, args []string) (err error) {
	o.networkSet = cmd.Flags().Changed("network")
	if len(args) == 1 {
		o.image = args[0]
	}
	ctx, stop := context.WithCancelCause(cmd.Context())
	defer stop(nil)
	defer surviveBrokenPipe()()
	cfg, err := a.loadConfig(slices.Concat(o.toOverrides(), a.serverOverride())...)
	if err != nil {
		return err
	}
	if err := o.check(cfg); err != nil {
		return err
	}
	in := newAgentInput(a)
	tasks, err := o.readTasks(cmd, a, in)
	if err != nil {
		return err
	}
	options, err := o.toOptions(a, cfg, in, stop)
	if err != nil {
		return a.toVerbError(ctx, err)
	}
	secrets, err := o.rules.readSecrets(a)
	if err != nil {
		return err
	}
	options.Secrets = append(options.Secrets, secrets.values()...)
	record, err := o.openTranscript(cfg)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, record.close()) }()
	options.Transcript, options.Resume = record.writer(), record.earlier
	place, err := o.openPlace(ctx, a, cfg, record.sandboxID(), secrets)
	if err != nil {
		return a.toVerbError(ctx, err)
	}
	defer func() { err = errors.Join(err, place.close()) }()
	options.Open = place.open
	if o.format == formatText {
		record.announce(a.Err)
	}
	return o.runTasks(ctx, a, options, tasks)
}

// check rejects options that contradict each other, or the configuration.
func (o *agentCommand) check(cfg config.Config) error {
	switch {
	case cfg.Explicit(config.KeyUseSandbox) && !cfg.Sandbox.UseSandbox:
		return sandpit.WithHint(
			sandpit.Errorf(sandpit.Invalid, "%s: %s = false: an agent's tools never run outside of a sandbox", cfg.Sources[config.KeyUseSandbox], config.KeyUseSandbox),
			"set it to true, or remove it")
	case o.script != "" && o.model != "":
		return sandpit.Errorf(sandpit.Invalid, "--script and --model name two models: use one of them")
	case o.maxSteps < 1:
		return sandpit.Errorf(sandpit.Invalid, "--max-steps %d: want at least 1", o.maxSteps)
	case o.resume != "" && o.transcript != "":
		return sandpit.Errorf(sandpit.Invalid, "--resume continues its own transcript: leave --transcript out")
	}
	return agent.CheckTools(o.tools)
}

// toOptions returns the options of the agent except those about its sandbox and transcript. Stop ends the
// task.
func (o *agentCommand) toOptions(a *app, cfg config.Config, in *agentInput, stop context.CancelCauseFunc) (options agent.Options, err error) {
	options = agent.Options{
		Tools: o.tools, Instructions: o.instructions, MaxSteps: o.maxSteps, Conversation: in.interactive, CommandTimeout: cfg.CommandTimeout(0),
		Ask: in.asker(), Secrets: agentSecrets(cfg),
	}
	if options.Budget, err = parseBudget(o.budget); err != nil {
		return options, err
	}
	if options.Price, err = parsePrice(o.price); err != nil {
		return options, err
	}
	if err := o.chooseModel(cfg, &options); err != nil {
		return options, err
	}
	if options.MCPServers, err = o.readServers(); err != nil {
		return options, err
	}
	for _, name := range o.onHost {
		fmt.Fprintf(a.Err, "sandpit: MCP server %s runs on this machine, outside of the sandbox\n", escapeText(name))
	}
	printer := newAgentPrinter(a, o.format, o.maxSteps, newCallLog(a, cfg, "agent"), stop)
	options.OnEvent = printer.print
	return options, nil
}

// closeAgentTimeout bounds the removal of the sandbox.
const closeAgentTimeout = time.Minute

// runTasks runs tasks one after the other in one agent. The sandbox is released in every way of
// ending, also after a panic.
func (o *agentCommand) runTasks(ctx context.Context, a *app, options agent.Options, tasks *agentTasks) (err error) {
	one, err := agent.New(options)
	if err != nil {
		return err
	}
	defer func() {
		cleanup, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeAgentTimeout)
		defer cancel()
		if e := one.Close(cleanup); e != nil { // the outcome is more important
			fmt.Fprintf(a.Err, "sandpit: the sandbox was not released: %s\n", escapeLines(e.Error()))
		}
	}()
	var outcome agent.Outcome
	for {
		task, ok, err := tasks.next(ctx)
		if err != nil {
			return a.signalOr(ctx, err)
		}
		if !ok {
			return toAgentStatus(ctx, outcome)
		}
		outcome, err = one.Run(ctx, task)
		if err != nil {
			return a.toTaskError(ctx, err)
		}
		if o.format == formatText && outcome.Text != "" {
			if _, err := fmt.Fprintln(a.Out, strings.TrimRight(escapeLines(outcome.Text), "\n")); err != nil {
				return toPipeStatus(err)
			}
		}
	}
}
